"""What a model is compared with, and when there is nothing to compare with."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.replica.verify.verification import reference_for, runtime_label
from deployments.settings.reference import CannotVerify
from runtimes.errors import LoadError
from runtimes.types import RuntimeSettings


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    file = tmp_path / "m.onnx"
    file.write_bytes(b"\x08\x09")
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import numpy as np
    from safetensors.numpy import save_file

    (tmp_path / "config.json").write_text("{}")
    save_file({"w": np.zeros(1, np.float32)}, str(tmp_path / "model.safetensors"))
    return tmp_path


def candidate(source: Path | None, runtime: str = "openvino", **fields) -> RuntimeSettings:
    cache = Path("/nonexistent") if source is None else source.parent / "cache"
    return RuntimeSettings("m", runtime, source, cache, **fields)


@pytest.mark.parametrize(
    ("runtime", "precision", "chosen"),
    [
        ("openvino", "bf16", "onnxruntime fp32"),
        ("onnxruntime", "fp32", "openvino fp32"),
        ("openvino", "fp32", "onnxruntime fp32"),
    ],
)
def test_a_graph_is_compared_with_onnx_runtime_unless_it_is_that(graph, runtime, precision, chosen):
    assert runtime_label(reference_for(candidate(graph, runtime, precision=precision))) == chosen


@pytest.mark.parametrize(
    ("runtime", "precision", "chosen"),
    [
        ("openvino", "fp32", "torch fp32"),
        ("torch", "bf16", "torch fp32"),
        ("torch", "fp32", "onnxruntime fp32"),
    ],
)
def test_a_folder_is_compared_with_torch_unless_it_is_that(folder, runtime, precision, chosen):
    assert runtime_label(reference_for(candidate(folder, runtime, precision=precision))) == chosen


def test_pooling_that_the_settings_ask_for_goes_along_and_rules_torch_out(folder):
    options = {"pooling": "cls", "streams": 1}
    wanted = reference_for(candidate(folder, options=options))
    assert runtime_label(wanted) == "onnxruntime fp32"
    assert wanted.options == {"pooling": "cls"}


def test_the_reference_may_be_named_with_its_precision(folder):
    assert runtime_label(reference_for(candidate(folder), "torch:bf16")) == "torch bf16"
    assert runtime_label(reference_for(candidate(folder), "onnxruntime")) == "onnxruntime fp32"


@pytest.mark.parametrize("against", ["tourch", "torch:fp12", ":", "torch:"])
def test_a_reference_that_is_none_is_refused(folder, against):
    if against == "torch:":
        assert runtime_label(reference_for(candidate(folder), against)) == "torch fp32"
        return
    with pytest.raises(CannotVerify, match="is not valid; must be RUNTIME or RUNTIME:PRECISION"):
        reference_for(candidate(folder), against)


def test_a_model_is_not_compared_with_itself(graph):
    with pytest.raises(CannotVerify, match="openvino in fp32 is what is to be verified"):
        reference_for(candidate(graph), "openvino")


def test_another_artifact_makes_the_same_runtime_a_reference(graph):
    other = graph.with_name("original.onnx")
    other.write_bytes(graph.read_bytes())
    wanted = reference_for(candidate(graph), "openvino", other)
    assert (runtime_label(wanted), wanted.source) == ("openvino fp32", other)
    assert (
        runtime_label(reference_for(candidate(graph, "onnxruntime"), None, other))
        == "onnxruntime fp32"
    )


def test_what_one_runtime_alone_runs_has_nothing_to_be_compared_with(tmp_path):
    (tmp_path / "m.xml").write_text("<?xml version='1.0'?><net/>")
    (tmp_path / "m.bin").write_bytes(b"")
    with pytest.raises(CannotVerify, match=r"m\.xml is run by openvino alone"):
        reference_for(candidate(tmp_path / "m.xml"))
    assert (
        runtime_label(reference_for(candidate(tmp_path / "m.xml", precision="bf16")))
        == "openvino fp32"
    )


def test_a_model_without_an_artifact_cannot_be_verified():
    with pytest.raises(CannotVerify, match="synthetic model has no artifact"):
        reference_for(candidate(None, "synthetic"))


def test_a_missing_artifact_is_said(tmp_path):
    with pytest.raises(LoadError, match="does not exist"):
        reference_for(candidate(tmp_path / "none.onnx"))
