"""Are parameters counted from headers alone, with tables that are looked up apart?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from runtimes.parameters import Parameters, count
from runtimes.source import inspect

CONFIG = {"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 3}


def folder(path: Path, dtype: type = np.float32) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    tensors = {
        "embeddings.word_embeddings.weight": np.zeros((100, 8), dtype),
        "layer.0.dense.weight": np.zeros((8, 8), dtype),
        "layer.0.dense.bias": np.zeros(8, dtype),
    }
    save_file(tensors, str(path / "model.safetensors"))
    return path


def test_a_folder_is_counted_by_its_headers(tmp_path: Path) -> None:
    found = count(inspect(folder(tmp_path / "m")))
    assert found == Parameters(total=872, multiplied=64, dtypes=("FP32",), attention=96.0)
    assert found.operations(2, 5) == 10 * (128 + 96 * 5)


def test_the_stored_type_is_told(tmp_path: Path) -> None:
    found = count(inspect(folder(tmp_path / "m", np.float16)))
    assert found is not None
    assert found.dtypes == ("FP16",)


def test_an_onnx_graph_is_counted_by_what_it_multiplies(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "x"], ["rows"]),
         helper.make_node("MatMul", ["rows", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.INT64, [None])],
        [helper.make_tensor_value_info("y", kind, [None, 2])],
        [helper.make_tensor("table", kind, [10, 4], [0.0] * 40),
         helper.make_tensor("w", kind, [4, 2], [0.0] * 8)],
    )  # fmt: skip
    onnx.save(helper.make_model(graph), str(tmp_path / "m.onnx"))
    assert count(inspect(tmp_path / "m.onnx")) == Parameters(48, 8, ("FP32",))


def test_what_cannot_be_read_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.xml").write_text("<?xml version='1.0'?><net/>")
    (tmp_path / "m.bin").write_bytes(b"\0" * 8)
    assert count(inspect(tmp_path / "m.xml")) is None
    (tmp_path / "m.onnx").write_bytes(b"\x08\x07")
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert count(inspect(tmp_path / "m.onnx")) is None
