"""docs/serve-your-model.md, section by section, as it is written: the Python makes the model, the
YAML serves it, and the call answers what the page says.

Sections without a language model share one server. What the page takes for granted (a RoBERTa
folder, a language model, an adapter, a picture) is made here, small and with random weights.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from served import Server

from examples import make_llm
from runtimes import catalog

PAGE = Path(__file__).parents[2] / "docs/serve-your-model.md"
NEEDS_VLLM = catalog.available("vllm", "generate")
pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Section:
    python: str
    models: dict[str, Any]
    calls: list[tuple[str, str]]  # a command, and its answer where the page has it


def sections() -> dict[str, Section]:
    """The page's sections that serve a model, by title."""
    found = {}
    for part in PAGE.read_text().split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        settings = blocks(text, "yaml")
        if settings:
            (models,) = (yaml.safe_load(each)["models"] for each in settings)
            found[title] = Section("\n".join(blocks(text, "python")), models, calls(text))
    return found


def blocks(text: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for named, block in fenced if named == language]


def calls(text: str) -> list[tuple[str, str]]:
    lines = [line for block in blocks(text, "") for line in block.splitlines()]
    after = [*lines[1:], ""]
    return [
        (line[2:], "" if answer.startswith("$ ") else answer)
        for line, answer in zip(lines, after, strict=True)
        if line.startswith("$ ")
    ]


SECTIONS = sections()
WITH_VLLM = {"LLM and LoRA"}
WITHOUT = sorted(SECTIONS.keys() - WITH_VLLM)


def without_vllm(folder: Path) -> dict[str, Any]:
    """The models of all sections that need no vLLM."""
    make_roberta(folder / "my-roberta")
    Image.new("RGB", (50, 40), (200, 30, 30)).save(folder / "picture.png")
    return made(folder, WITHOUT)


SHARED = without_vllm


@pytest.fixture(scope="module")
def server(shared: Server) -> Server:
    return shared


@pytest.fixture(scope="module")
def folder(shared: Server, request: pytest.FixtureRequest) -> Path:
    made: Path = request.module.SHARED_FOLDER
    return made


def made(folder: Path, titles: list[str]) -> dict[str, Any]:
    """Models as these sections of the page make and describe them."""
    models: dict[str, Any] = {}
    for title in titles:
        section = SECTIONS[title]
        if section.python:
            run = [sys.executable, "-c", section.python]
            subprocess.run(run, cwd=folder, check=True, timeout=300)
        for name, model in section.models.items():
            models[name] = {**model, "slo": {"latency_ms": 20_000}}
            if model.get("task") == "generate":
                models[name]["slo"] = {"ttft_ms": 20_000}
            if "source" in model:
                models[name]["source"] = str(folder / model["source"])
    return models


def found_right(server: Server) -> None:
    checked = server.headrace("check", str(server.file))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def ask(server: Server, folder: Path, command: str) -> dict[str, Any]:
    """The answer to a command of the page, which must succeed."""
    words = shlex.split(command.replace("http://127.0.0.1:8000", server.url))
    assert words[:2] == ["curl", "-s"]
    done = subprocess.run(
        [*words, "--fail-with-body", "--max-time", "60"],
        cwd=folder, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def make_roberta(folder: Path) -> None:
    """A folder as `save_pretrained` writes it."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaModel

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(["the river turns the wheel"], trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    marks = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks).save_pretrained(folder)
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=32, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=64, max_position_embeddings=130,
    )  # fmt: skip
    RobertaModel(config).save_pretrained(folder)


def make_adapter(folder: Path, hidden: int, layers: int, rank: int = 8) -> None:
    """An adapter of the queries' projections, as PEFT writes it."""
    from safetensors.numpy import save_file

    draw, weights = np.random.default_rng(3), {}
    for layer in range(layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        for part, shape in (("lora_A", (rank, hidden)), ("lora_B", (hidden, rank))):
            values = draw.normal(0, 0.5, shape).astype(np.float32)
            weights[f"{name}.{part}.weight"] = values
    folder.mkdir(parents=True)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 16,
        "target_modules": ["q_proj"], "bias": "none", "base_model_name_or_path": "my-llm",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))


def test_every_section_makes_a_model_and_calls_it():
    assert sorted(SECTIONS) == ["Images", "LLM and LoRA", "scikit-learn", "torch", "transformers"]
    assert all(section.calls for section in SECTIONS.values())


def test_headrace_check_finds_the_models_right(server):
    found_right(server)


def test_scikit_learn_answers_what_the_page_says(server, folder):
    ((command, said),) = SECTIONS["scikit-learn"].calls
    found, written = ask(server, folder, command), json.loads(said)
    for answer in (found, written):
        del answer["model_version"]  # also of the libraries' versions
    labels, probabilities = found["outputs"]
    assert labels == written["outputs"][0]
    np.testing.assert_allclose(probabilities["data"], written["outputs"][1]["data"], atol=0.05)


def test_a_torch_module_answers_as_it_does_without_headrace(server, folder):
    import torch

    ((command, _),) = SECTIONS["torch"].calls
    (output,) = ask(server, folder, command)["outputs"]
    module = torch.export.load(folder / "prices.pt2").module()
    events = torch.tensor([[[0.0, 10, 5, 1], [1, 11, 5, 2]]])
    alone = module(events=events, attention_mask=torch.ones(1, 2, dtype=torch.int64))
    np.testing.assert_allclose(output["data"], alone["price"].detach().numpy(), rtol=1e-5)


def test_a_transformers_encoder_embeds_as_it_does_without_headrace(server, folder):
    import torch
    from transformers import AutoModel, AutoTokenizer

    ((command, _),) = SECTIONS["transformers"].calls
    found = [each["embedding"] for each in ask(server, folder, command)["data"]]
    name = str(folder / "my-roberta")
    encoder, tokenizer = AutoModel.from_pretrained(name).eval(), AutoTokenizer.from_pretrained(name)
    for text, embedding in zip(["the river turns", "the wheel"], found, strict=True):
        with torch.no_grad():
            hidden = encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state
        np.testing.assert_allclose(embedding, hidden.mean(1)[0].numpy(), atol=1e-5)


def test_an_image_is_classified_with_the_labels_of_the_file(server, folder):
    ((command, _),) = SECTIONS["Images"].calls
    (prediction,) = ask(server, folder, command)["predictions"]
    assert {each["label"] for each in prediction["labels"]} == {"circle", "square", "triangle"}
    assert sum(each["score"] for each in prediction["labels"]) == pytest.approx(1)


@pytest.mark.vllm
@pytest.mark.skipif(NEEDS_VLLM is not None, reason=str(NEEDS_VLLM))
def test_a_language_model_and_its_adapter_answer_differently(serve, tmp_path):
    sizes = make_llm.Sizes()
    make_llm.make(tmp_path / "my-llm", sizes)
    make_adapter(tmp_path / "adapters/support", sizes.hidden, sizes.layers)
    models = made(tmp_path, sorted(WITH_VLLM))
    server = serve(models)
    server.file = tmp_path / "own.yaml"  # which its adapters are relative to
    server.file.write_text(yaml.safe_dump({"models": models, "gateway": server.gateway}))
    found_right(server)
    server.start()
    asked = [ask(server, tmp_path, command) for command, _ in SECTIONS["LLM and LoRA"].calls]
    assert [answer["model"] for answer in asked] == ["llm", "llm:support"]
    texts = [answer["choices"][0]["message"]["content"] for answer in asked]
    assert texts[0] != texts[1]
