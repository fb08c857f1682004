"""Encoders of images and sounds, and of the texts that go with images, against transformers.

`python -m tests.runtimes.test_towers` runs every one of them on all runtimes and prints the worst
differences, the table of docs/runtimes.md. The tests export two: an export takes 5 to 10 s of a
processor.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from runtimes import catalog
from runtimes.errors import BadRows, LoadError
from runtimes.types import Batch, Ragged, RowShapes, Runtime, RuntimeSettings

WORST = 1e-5
SIDE, MELS, FRAMES = 32, 16, 100
SMALL: Mapping[str, Any] = {
    **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4},
    "intermediate_size": 64,
}
WORDS = {**SMALL, "vocab_size": 500, "bos_token_id": 3, "eos_token_id": 2, "pad_token_id": 1}
SEEN = {**SMALL, "image_size": SIDE, "patch_size": 8}
HEARD: Mapping[str, Any] = {
    **{"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 500},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64},
    **{"decoder_ffn_dim": 64, "max_source_positions": FRAMES // 2, "num_mel_bins": MELS},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "clip": {"text_config": WORDS, "vision_config": SEEN, "projection_dim": 24},
    "siglip": {"text_config": {**WORDS, "max_position_embeddings": 64}, "vision_config": SEEN},
    "vit": SEEN,
    "whisper": HEARD,
}
EVERY = [
    ("clip", "images"), ("clip", "texts"), ("siglip", "images"), ("siglip", "texts"),
    ("vit", "images"), ("whisper", "sounds"),
]  # fmt: skip
EXPORTED = [("clip", "images"), ("clip", "texts")]
TEXTS = (1, 5, 30)  # tokens before the last
INPUTS = {"images": "pixel_values", "texts": "input_ids", "sounds": "input_features"}
EMBEDS = {"images": "image_embeds", "texts": "text_embeds", "sounds": "audio_embeds"}
Row = np.ndarray[Any, Any]


def folder(path: Path, family: str, auto: Any = transformers.AutoModel, **more: Any) -> Any:
    """Writes a small random model; returns transformers' own."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**CONFIGS[family], **more})
    network = auto.from_config(config).eval()
    network.save_pretrained(path)
    return network


def rows(reads: str) -> list[Row]:
    random = np.random.default_rng(0)
    if reads == "texts":
        return [np.append(random.integers(3, 500, count), 2) for count in TEXTS]
    shape = (3, SIDE, SIDE) if reads == "images" else (MELS, FRAMES)
    return [random.standard_normal(shape, np.float32) for _ in range(3)]


def opened(runtime: str, path: Path, reads: str, task: str, cache: Path, **options: Any) -> Runtime:
    images = RowShapes(None, ((4, (3, SIDE, SIDE)),)) if reads == "images" else None
    made = catalog.create(
        RuntimeSettings(
            name="m", runtime=runtime, source=path, cache_dir=cache, task=task, options=options,
            max_length=None if images else 60, edges=(16, 60), max_size=4, threads=1,
            row_shapes=images,
        )
    )  # fmt: skip
    made.load()
    return made


def answers(runtime: Runtime, reads: str, given: list[Row], name: str = "") -> list[Row]:
    """Of the rows in one batch, the output of that name, or the first."""
    lengths = {"texts": [len(row) for row in given], "images": [4] * len(given)}
    shapes, data = tuple(row.shape for row in given), [row.reshape(-1) for row in given]
    kind = "INT64" if reads == "texts" else "FP32"
    inputs = {INPUTS[reads]: Ragged(kind, np.concatenate(data), shapes)}
    result = runtime.run(Batch(len(given), np.array(lengths.get(reads, [1] * len(given))), inputs))
    output = result.outputs[name or next(iter(result.outputs))]
    return [row.reshape(shape) for row, shape in zip(output.rows(), output.shapes, strict=True)]


def expected(network: Any, family: str, reads: str) -> dict[str, list[Row]]:
    """Each row by itself, by transformers' own network: hidden states and embedding."""
    found: dict[str, list[Row]] = {"last_hidden_state": [], EMBEDS[reads]: []}
    for row in rows(reads):
        given = torch.tensor(row)[None]
        with torch.no_grad():
            if reads == "sounds":
                hidden = network.get_encoder()(given).last_hidden_state
                vector = hidden.mean(1)
            elif family == "vit":
                both = network(given)
                hidden, vector = both.last_hidden_state, both.pooler_output
            elif reads == "images":
                hidden = network.vision_model(given).last_hidden_state
                vector = network.get_image_features(given).pooler_output
            else:
                if family == "siglip":  # as its tokeniser fills texts up
                    given = torch.nn.functional.pad(given, (0, 64 - given.shape[1]), value=1)
                hidden = network.text_model(given).last_hidden_state[:, : len(row)]
                vector = network.get_text_features(given).pooler_output
        found["last_hidden_state"].append(hidden[0].numpy())
        found[EMBEDS[reads]].append(vector[0].numpy())
    return found


def worst(ours: list[Row], theirs: list[Row]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


def own_options(family: str) -> dict[str, Any]:
    return {"pooling": "mean"} if family == "whisper" else {}


@pytest.mark.parametrize(("family", "reads"), EVERY)
def test_torch_runs_each_encoder_as_transformers_does_and_a_row_alone_as_in_a_batch(
    tmp_path, family, reads
):
    network = folder(tmp_path / "m", family)
    runtime = opened("torch", tmp_path / "m", reads, "tensors", tmp_path, **own_options(family))
    for name, theirs in expected(network, family, reads).items():
        together = answers(runtime, reads, rows(reads), name)
        assert worst(together, theirs) < WORST
        alone = [answers(runtime, reads, [row], name)[0] for row in rows(reads)]
        assert worst(together, alone) < WORST


@pytest.mark.parametrize(("family", "reads"), EXPORTED)
def test_an_exported_encoder_answers_as_transformers_does_on_both_backends(tmp_path, family, reads):
    network = folder(tmp_path / "m", family)
    theirs = expected(network, family, reads)[EMBEDS[reads]]
    theirs = [vector / np.linalg.norm(vector) for vector in theirs]
    for backend in ("onnxruntime", "openvino"):
        runtime = opened(backend, tmp_path / "m", reads, "embed", tmp_path / "c", normalize=True)
        assert [spec.name for spec in runtime.limits().outputs] == [EMBEDS[reads]]
        together = answers(runtime, reads, rows(reads))
        assert worst(together, theirs) < WORST
        alone = [answers(runtime, reads, [row])[0] for row in rows(reads)]
        assert worst(together, alone) < WORST
    assert len(list((tmp_path / "c/staged").glob("*/model.onnx.data"))) <= 1  # one export for both
    for file in (tmp_path / "c/staged").glob("*/model.onnx"):
        graph = onnx.load(file, load_external_data=False).graph
        assert "MultiHeadAttention" in [node.op_type for node in graph.node]


@pytest.mark.parametrize("family", ["clip", "vit"])
def test_an_image_classifier_gives_its_logits(tmp_path, family):
    auto, labels = transformers.AutoModelForImageClassification, {"id2label": {0: "a", 1: "b"}}
    network = folder(tmp_path / "m", family, auto, **labels)
    with torch.no_grad():
        theirs = [network(torch.tensor(row)[None]).logits[0].numpy() for row in rows("images")]
    runtime = opened("torch", tmp_path / "m", "images", "classify", tmp_path)
    assert worst(answers(runtime, "images", rows("images"), "logits"), theirs) < WORST


@pytest.mark.parametrize("mode", ["cls", "mean", "max"])
def test_a_vit_without_its_pooler_needs_another_pooling(tmp_path, mode):
    network = folder(tmp_path / "m", "vit")
    file = tmp_path / "m/model.safetensors"
    kept = {name: value for name, value in load_file(file).items() if "pooler" not in name}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(LoadError, match=r"holds no pooler.*set the option pooling to cls or mean"):
        opened("torch", tmp_path / "m", "images", "embed", tmp_path)
    hidden = expected(network, "vit", "images")["last_hidden_state"]
    ways = {"cls": lambda h: h[0], "mean": lambda h: h.mean(0), "max": lambda h: h.max(0)}
    runtime = opened("torch", tmp_path / "m", "images", "embed", tmp_path, pooling=mode)
    assert (
        worst(answers(runtime, "images", rows("images")), [ways[mode](h) for h in hidden]) < WORST
    )
    plain = opened("torch", tmp_path / "m", "images", "tensors", tmp_path)
    assert [spec.name for spec in plain.limits().outputs] == ["last_hidden_state"]


def test_siglips_texts_are_filled_up_with_the_tokenizers_own_padding(tmp_path):
    network = folder(tmp_path / "m", "siglip")
    (tmp_path / "m/tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>"}))
    words = {"model": {"vocab": {"a": 3, "<pad>": 0}}}
    (tmp_path / "m/tokenizer.json").write_text(json.dumps(words))
    given = torch.tensor(rows("texts")[1])[None]
    with torch.no_grad():
        filled = torch.nn.functional.pad(given, (0, 64 - given.shape[1]), value=0)
        theirs = network.get_text_features(filled).pooler_output[0].numpy()
    runtime = opened("torch", tmp_path / "m", "texts", "embed", tmp_path)
    assert worst(answers(runtime, "texts", rows("texts"))[1:2], [theirs]) < WORST


def test_fewer_bits_stay_near(tmp_path):
    network = folder(tmp_path / "m", "clip")
    theirs = expected(network, "clip", "images")["image_embeds"]
    settings = RuntimeSettings(
        name="m", runtime="torch", source=tmp_path / "m", cache_dir=tmp_path, task="embed",
        precision="bf16", threads=1, row_shapes=RowShapes(None, ((4, (3, SIDE, SIDE)),)),
    )  # fmt: skip
    runtime = catalog.create(settings)
    runtime.load()
    assert 1e-5 < worst(answers(runtime, "images", rows("images")), theirs) < 0.1


def test_a_row_of_another_shape_is_its_callers_fault(tmp_path):
    folder(tmp_path / "m", "whisper")
    runtime = opened("torch", tmp_path / "m", "sounds", "tensors", tmp_path)
    short = np.zeros((MELS, FRAMES - 1), np.float32)
    with pytest.raises(BadRows, match="input_features"):
        answers(runtime, "sounds", [short])


def test_a_siglip_without_its_head_has_hidden_states_alone(tmp_path):
    seen = {**SEEN, "vision_use_head": False}
    folder(tmp_path / "m", "siglip", vision_config=seen)
    with pytest.raises(LoadError, match=r"holds no pooler, .* its task is tensors"):
        opened("torch", tmp_path / "m", "images", "embed", tmp_path)
    runtime = opened("torch", tmp_path / "m", "images", "tensors", tmp_path)
    (hidden, *_) = answers(runtime, "images", rows("images"), "last_hidden_state")
    assert hidden.shape == ((SIDE // 8) ** 2, 32)


def test_sizes_that_are_none_are_named(tmp_path):
    folder(tmp_path / "m", "vit")
    file = tmp_path / "m/config.json"
    said = json.loads(file.read_text())
    for name, value in (("image_size", "large"), ("image_size", [32, 0]), ("num_channels", 0)):
        file.write_text(json.dumps({**said, name: value}))
        with pytest.raises(LoadError, match=f"{name} is .*; it must be a whole number from 1"):
            refused(tmp_path / "m", "embed", ((32, 32),))


def refused(path: Path, task: str, sizes: Any = None, **options: Any) -> None:
    asked = catalog.FileRequirements("torch", task, options, "fp32", None, sizes)
    catalog.check_files(path, asked)


@pytest.mark.parametrize(
    ("family", "task", "sizes", "options", "said"),
    [
        ("vit", "embed", None, {}, r"vit, which reads images; .* needs the setting image"),
        ("whisper", "embed", ((32, 32),), {}, "whisper, which reads no images"),
        ("whisper", "embed", None, {}, r"declares no pooling.*set the option pooling \(mean"),
        ("whisper", "classify", None, {}, "encoder of sounds has the tasks tensors, embed, not"),
        ("clip", "rerank", None, {}, "encoder of texts has the tasks tensors, embed, not"),
        ("clip", "classify", ((32, 32),), {}, "architectures is CLIPModel; task classify needs"),
        ("clip", "embed", ((64, 64),), {}, "reads images of 32 x 32 pixels, image.size makes 64"),
        ("clip", "embed", None, {"pooling": "mean"}, "option pooling is mean; leave it out"),
        ("vit", "embed", ((32, 32),), {"pooling": "lasttoken"}, "it can be cls, max, mean, or le"),
        ("siglip", "embed", None, {"pooling": "splade"}, "option pooling is splade; leave it out"),
    ],
)  # fmt: skip
def test_what_an_encoder_is_not_for_is_refused_before_it_is_loaded(
    tmp_path, family, task, sizes, options, said
):
    folder(tmp_path / "m", family)
    with pytest.raises(LoadError, match=said):
        refused(tmp_path / "m", task, sizes, **options)


def test_a_text_is_as_long_as_the_encoder_of_texts_takes(tmp_path):
    folder(tmp_path / "m", "clip")
    asked = catalog.FileRequirements("torch", "embed", {}, "fp32", 128)
    with pytest.raises(LoadError, match="takes rows of 77 tokens at most"):
        catalog.check_files(tmp_path / "m", asked)
    refused(tmp_path / "m", "embed")
    refused(tmp_path / "m", "embed", ((SIDE, SIDE),))


def main() -> None:
    print("| family | reads | onnxruntime | openvino | torch |\n|---|---|---|---|---|")
    for family, reads in EVERY:
        if sys.argv[1:] and family not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            path, cells = Path(scratch), []
            theirs = expected(folder(path / "m", family), family, reads)
            for backend in ("onnxruntime", "openvino", "torch"):
                runtime = opened(backend, path / "m", reads, "tensors", path, **own_options(family))
                ours = [
                    worst(answers(runtime, reads, rows(reads), n), t) for n, t in theirs.items()
                ]
                cells.append(f"{max(ours):.1e}")
            print(f"| {family} | {reads} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
