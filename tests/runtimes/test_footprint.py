from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from runtimes import footprint
from runtimes.errors import LoadError, RefusedArtifact
from runtimes.footprint import Architecture
from runtimes.source import inspect, inspect_without_digest

LLAMA = {  # 8B, as published
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(LLAMA))
    save_file({
        "layer.weight": np.zeros((10, 20), np.float32),
        "embeddings.weight": np.zeros((7, 3), np.float16),
        "layer.bias": np.zeros(5, np.float32),
        "layer.qweight": np.zeros((4, 4), np.int8),
    }, str(path / "model.safetensors"))  # fmt: skip
    return path


@pytest.mark.parametrize(
    ("precision", "size"),
    [
        ("fp32", 4 * (200 + 21 + 5) + 16),
        ("fp16", 2 * (200 + 21 + 5) + 16),
        ("bf16", 2 * (200 + 21 + 5) + 16),
        ("int8", 200 + 4 * (21 + 5) + 16),  # products alone are quantised
        ("fp8", 200 + 2 * (21 + 5) + 16),
    ],
)
def test_tensors_count_in_the_format_they_are_computed_in(folder, precision, size):
    assert footprint.weights_bytes(inspect_without_digest(folder), precision) == size


def test_other_files_count_as_they_are_stored(tmp_path):
    (tmp_path / "net.xml").write_text("<?xml version='1.0'?><net></net>")
    (tmp_path / "net.bin").write_bytes(bytes(1_000))
    assert footprint.weights_bytes(inspect_without_digest(tmp_path / "net.xml"), "fp16") == 1_000


def test_shared_keys_and_values_make_the_cache_smaller(folder):
    shape = footprint.architecture(inspect_without_digest(folder))
    assert shape is not None
    assert shape.cached == 2 * 32 * 8 * 128
    assert footprint.cache_bytes(shape, 1, 2) == 128 * 1024  # a token of Llama 3 8B: 128 KiB


def cached(**config: object) -> int:
    shape = footprint._of_config(LLAMA | config)
    return shape.cached


def test_heads_of_their_own_size_and_latent_caches_are_known():
    assert cached(head_dim=64) == 2 * 32 * 8 * 64
    assert cached(num_key_value_heads=None) == 2 * 32 * 32 * 128
    assert cached(kv_lora_rank=512, qk_rope_head_dim=64) == 32 * 576


def test_a_multimodal_config_tells_of_its_text_model(folder):
    (folder / "config.json").write_text(json.dumps({"text_config": LLAMA}))
    shape = footprint.architecture(inspect_without_digest(folder))
    assert shape is not None
    assert shape.hidden == 4096


@pytest.mark.parametrize("text", ["{}", "[]", '{"hidden_size": 8}', "nonsense"])
def test_a_config_that_says_too_little_says_nothing(folder, text):
    (folder / "config.json").write_text(text)
    assert footprint.architecture(inspect_without_digest(folder)) is None


def test_a_batch_takes_more_with_its_tokens_and_with_the_square_of_its_length():
    shape = Architecture(hidden=8, intermediate=32, heads=2, vocabulary=100, cached=64)
    assert footprint.batch_bytes(shape, 1, 4, 4, 2) == (4 * (6 * 8 + 3 * 32) + 2 * 2 * 16) * 2
    one = footprint.batch_bytes(shape, 1, 100, 100, 2)
    assert footprint.batch_bytes(shape, 2, 200, 100, 2) == 2 * one
    assert footprint.step_bytes(shape, 3, 100, 2) == 100 * (6 * 8 + 3 * 32) * 2 + 3 * 100 * 4


def test_looking_at_a_source_reads_no_file_whole_and_finds_the_same(folder):
    looked, inspected = inspect_without_digest(folder), inspect(folder)
    assert looked.digest == ""
    assert (looked.kind, looked.files, looked.weights) == (
        inspected.kind, inspected.files, inspected.weights,
    )  # fmt: skip


def test_looking_at_a_source_refuses_what_inspecting_refuses(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"\x80")
    with pytest.raises(RefusedArtifact):
        inspect_without_digest(tmp_path / "model.pt")
    with pytest.raises(LoadError, match="does not exist"):
        inspect_without_digest(tmp_path / "nothing.onnx")
