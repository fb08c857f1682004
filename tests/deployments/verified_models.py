"""Tiny graphs, made on the spot, and models of a settings file around them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

Settings = Callable[..., Path]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def settings_file(tmp_path: Path) -> Settings:
    """Writes a file with one model `m` of these fields."""

    def write(**model: Any) -> Path:
        file = tmp_path / "settings.yaml"
        small = {"lengths": {"max": 64, "buckets": [8, 64]}, "batch": {"max_size": 8}}
        file.write_text(yaml.safe_dump({"models": {"m": {"runtime": "openvino"} | small | model}}))
        return file

    return write


@pytest.fixture
def tokens_onnx(tmp_path: Path) -> Callable[..., Path]:
    """`input_ids` [-1, -1] → `y` [-1, 4]: the sum of its tokens' vectors of a table of 50, scaled
    and scaled back through one intermediate tensor `large`; all in float16 where `half`, `large`
    alone where `between_half`."""
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    def make(
        name: str = "tokens.onnx",
        *,
        scale: float = 1.0,
        half: bool = False,
        between_half: bool = False,
    ) -> Path:
        dtype = np.float16 if half else np.float32
        between = TensorProto.FLOAT16 if half or between_half else TensorProto.DOUBLE
        real = TensorProto.FLOAT16 if half else TensorProto.FLOAT
        table = np.random.default_rng(0).normal(1, 0.1, (50, 4)).astype(dtype)
        constants = [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.array([1], np.int64), "axes"),
            numpy_helper.from_array(np.array(scale, dtype), "up"),
            numpy_helper.from_array(np.array(1 / scale, dtype), "down"),
        ]
        nodes = [
            helper.make_node("Gather", ["table", "input_ids"], ["vectors"], name="look_up"),
            helper.make_node("ReduceSum", ["vectors", "axes"], ["sum"], "add_up", keepdims=0),
            helper.make_node("Mul", ["sum", "up"], ["large"], name="scale_up"),
            helper.make_node("Cast", ["large"], ["kept"], name="narrow", to=between),
            helper.make_node("Cast", ["kept"], ["again"], name="widen", to=real),
            helper.make_node("Mul", ["again", "down"], ["small"], name="scale_down"),
            helper.make_node("Cast", ["small"], ["y"], name="to_float", to=TensorProto.FLOAT),
        ]
        ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["rows", "length"])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])
        graph = helper.make_graph(nodes, "tokens", [ids], [y], constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 9
        file = tmp_path / name
        file.write_bytes(model.SerializeToString())
        return file

    return make
