"""Graphs whose rows depend on each other are found before they are served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from runtimes import catalog
from runtimes.independence import rows_depend
from runtimes.types import RuntimeSettings


def graph(
    place: Path, nodes: list[onnx.NodeProto], length: str | int = 6, entries: int = 100
) -> Path:
    """`ids` [rows, length] to `scores` [rows, 8], by a table of random vectors."""
    table = np.random.default_rng(7).normal(size=(entries, 8)).astype(np.float32)
    weights = np.random.default_rng(8).normal(size=(8, 8)).astype(np.float32)
    stored = [onnx.numpy_helper.from_array(table, "table"),
              onnx.numpy_helper.from_array(weights, "weights")]  # fmt: skip
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows", length])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["rows", 8])
    made = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["tokens"]),
            helper.make_node("ReduceMax", ["tokens"], ["pooled"], axes=[1], keepdims=0),
            *nodes,
        ],
        "g", [ids], [scores], stored,
    )  # fmt: skip
    file = place / "model.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(made, opset_imports=[opset], ir_version=10), file)
    return file


def settings_of(file: Path | None, **changes: Any) -> RuntimeSettings:
    given: dict[str, Any] = {
        "name": "m", "runtime": "onnxruntime", "source": file, "cache_dir": Path(), "threads": 1,
        "max_length": 64, "edges": (64,), "max_size": 4, "max_tokens": 1024,
    }  # fmt: skip
    return RuntimeSettings(**{**given, **changes})


def found(file: Path, **changes: Any) -> str:
    settings = settings_of(file, cache_dir=file.parent, **changes)
    runtime = catalog.create(settings)
    try:
        runtime.load()
        return rows_depend(runtime, settings)
    finally:
        runtime.close()


INDEPENDENT = [helper.make_node("MatMul", ["pooled", "weights"], ["scores"])]
# As dynamic quantisation does: one scale for all rows of a batch.
DYNAMIC = [
    helper.make_node("DynamicQuantizeLinear", ["pooled"], ["q", "scale", "zero"]),
    helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["coarse"]),
    helper.make_node("MatMul", ["coarse", "weights"], ["scores"]),
]
CENTRED = [
    helper.make_node("ReduceMean", ["pooled"], ["mean"], axes=[0]),
    helper.make_node("Sub", ["pooled", "mean"], ["scores"]),
]


def test_rows_that_are_by_themselves_are_left_alone(tmp_path: Path) -> None:
    assert found(graph(tmp_path, INDEPENDENT)) == ""


@pytest.mark.parametrize("nodes", [DYNAMIC, CENTRED], ids=["dynamic int8", "mean of the batch"])
def test_a_scale_or_mean_over_the_batch_is_found(tmp_path: Path, nodes: list[onnx.NodeProto]):
    assert found(graph(tmp_path, nodes)).startswith("its output scores of a row changes by up to ")


def test_padding_without_a_mask_is_found(tmp_path: Path) -> None:
    """A shorter row is filled up with zeros, and the largest value of all tokens is taken."""
    assert "changes by up to" in found(graph(tmp_path, INDEPENDENT, "length"), length_input="ids")


def test_where_no_row_has_another_beside_it_nothing_is_tried(tmp_path: Path) -> None:
    assert found(graph(tmp_path, CENTRED), max_size=1) == ""


def test_a_table_of_few_entries_is_tried_with_few_ids(tmp_path: Path) -> None:
    assert "changes by up to" in found(graph(tmp_path, CENTRED, entries=10))


def test_a_folder_and_no_source_are_not_checked() -> None:
    class Never:
        def limits(self) -> object:
            return type("Limits", (), {"row_shapes": None})()

    assert rows_depend(Never(), settings_of(None)) == ""  # type: ignore[arg-type]
    assert rows_depend(Never(), settings_of(Path("folder"))) == ""  # type: ignore[arg-type]
