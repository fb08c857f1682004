"""Reranking by a language model that says yes or no (Qwen3-Reranker), through the whole gateway and
torch, against transformers and the model card's own code.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from in_process import Stand, ask, standing
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE

from runtimes import catalog
from runtimes.errors import LoadError

WORST = 1e-5
LONGEST = 160
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THOUGHTS = ("<think>", "</think>")
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
BEGINS = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
ENDS = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
# Qwen2's: where words begin.
WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = ["(the) wheel turns.", "5 stones\n\nin water", "\nriver: yes, no?", "Zürich 東京", ""]


def tokenizer() -> Tokenizer:
    made = Tokenizer(BPE())
    words = pre_tokenizers.Split(Regex(WORD), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    learnt = [BEGINS, ENDS, INSTRUCTION, *TEXTS, "<Instruct>: <Query>: <Document>:"] * 3
    made.train_from_iterator([*learnt, *["yes no"] * 60], trainer)
    made.add_special_tokens([AddedToken(each, special=True) for each in SPECIAL])
    made.add_tokens([AddedToken(each, normalized=False) for each in THOUGHTS])
    return made


def folder(path: Path) -> tuple[Any, Tokenizer]:
    made = tokenizer()
    path.mkdir()
    made.save(str(path / "tokenizer.json"))
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "qwen3", vocab_size=made.get_vocab_size(), hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=128,
        max_position_embeddings=512, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    network = transformers.AutoModelForCausalLM.from_config(config).eval()
    network.save_pretrained(path)
    return network, made


def by_card(made: Tokenizer, query: str, document: str, instruction: str, cut: int) -> list[int]:
    """The ids, of which the document loses so many."""
    body = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    ids: list[int] = made.encode(BEGINS).ids + made.encode(body).ids
    return ids[: len(ids) - cut] + made.encode(ENDS).ids


def judged(network: Any, made: Tokenizer, ids: list[int]) -> float:
    with torch.no_grad():
        logits = network(torch.tensor([ids])).logits[0, -1]
    words = torch.stack([logits[made.token_to_id(word)] for word in ("no", "yes")])
    return float(torch.softmax(words, 0)[1])


async def post(stand: Stand, **body: Any) -> tuple[int, Any]:
    answer = await ask(stand.app, "POST", "/v1/rerank", body=json.dumps(body).encode())
    return answer.status, json.loads(answer.body)


def model(path: Path) -> dict[str, Any]:
    return {
        "runtime": "torch", "source": str(path), "task": "rerank", "lengths": {"max": LONGEST},
        "slo": {"latency_ms": 60_000},
    }  # fmt: skip


async def test_a_language_model_judges_as_its_card_says(tmp_path: Path) -> None:
    network, made = folder(tmp_path / "m")
    async with standing({"m": model(tmp_path / "m")}, tmp_path) as stand:
        for query, more in (
            ("What turns the wheel?", {}),
            ("river\n", {"instruction": "Find stones"}),
        ):
            status, answer = await post(stand, model="m", query=query, documents=TEXTS, **more)
            assert status == 200
            instruction = more.get("instruction", INSTRUCTION)
            rows = [by_card(made, query, text, instruction, 0) for text in TEXTS]
            assert max(map(len, rows)) <= LONGEST
            assert answer["usage"]["prompt_tokens"] == sum(map(len, rows))
            found = {each["index"]: each["relevance_score"] for each in answer["results"]}
            wanted = [judged(network, made, ids) for ids in rows]
            assert [found[at] for at in range(len(TEXTS))] == pytest.approx(wanted, abs=WORST)
            assert len({round(score, 4) for score in wanted}) > 1


async def test_documents_alone_are_cut_and_what_follows_them_stays(tmp_path: Path) -> None:
    network, made = folder(tmp_path / "m")
    long = "water " * 100
    async with standing({"m": model(tmp_path / "m")}, tmp_path) as stand:
        status, answer = await post(stand, model="m", query="river", documents=[long])
        whole = by_card(made, "river", long, INSTRUCTION, 0)
        ids = by_card(made, "river", long, INSTRUCTION, len(whole) - LONGEST)
        assert (status, answer["usage"]["prompt_tokens"]) == (200, LONGEST)
        (result,) = answer["results"]
        assert result["relevance_score"] == pytest.approx(judged(network, made, ids), abs=WORST)
        status, answer = await post(stand, model="m", query="river " * 120, documents=["a"])
        assert (status, answer["error"]["param"]) == (400, "query")


def asked(task: str, runtime: str = "torch") -> catalog.FileRequirements:
    return catalog.FileRequirements(runtime, task, {}, "fp32", None)


def test_a_cross_encoders_modules_are_taken_where_they_say_the_same(tmp_path: Path) -> None:
    _, made = folder(tmp_path / "m")
    kinds = ("base.modules.transformer.Transformer", "cross_encoder.modules.logit_score.LogitScore")
    places = ("", "1_LogitScore")
    named = [
        {"idx": at, "name": str(at), "path": place, "type": f"sentence_transformers.{kind}"}
        for at, (kind, place) in enumerate(zip(kinds, places, strict=True))
    ]
    (tmp_path / "m/modules.json").write_text(json.dumps(named))
    (tmp_path / "m/1_LogitScore").mkdir()
    yes, no = (made.token_to_id(word) for word in ("yes", "no"))
    for ids, fits in (((yes, no), True), ((no, yes), False), ((yes, None), False)):
        said = dict(zip(("true_token_id", "false_token_id"), ids, strict=True))
        (tmp_path / "m/1_LogitScore/config.json").write_text(json.dumps(said))
        with nullcontext() if fits else pytest.raises(LoadError, match="its tokens are"):
            catalog.check_files(tmp_path / "m", asked("rerank"))
    config = json.loads((tmp_path / "m/config.json").read_text())
    config["architectures"] = ["Qwen2ForCausalLM"]
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError, match="LogitScore is supported of Qwen3ForCausalLM alone"):
        catalog.check_files(tmp_path / "m", asked("rerank"))


def test_a_language_model_is_checked_before_it_is_loaded(tmp_path: Path) -> None:
    folder(tmp_path / "m")
    catalog.check_files(tmp_path / "m", asked("rerank"))
    with pytest.raises(LoadError, match="runs with runtime torch alone"):
        catalog.check_files(tmp_path / "m", asked("rerank", "onnxruntime"))
    with pytest.raises(LoadError, match="is Qwen3ForCausalLM; task classify needs one that ends"):
        catalog.check_files(tmp_path / "m", asked("classify"))
    said = json.loads((tmp_path / "m/tokenizer.json").read_text())
    vocabulary = said["model"]["vocab"]
    vocabulary["Yes!"] = vocabulary.pop("yes")
    (tmp_path / "m/tokenizer.json").write_text(json.dumps(said))
    with pytest.raises(LoadError, match=r"tokenizer.json lacks yes or no, as one token"):
        catalog.check_files(tmp_path / "m", asked("rerank"))
