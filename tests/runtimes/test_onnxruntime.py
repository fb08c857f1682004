"""What is ONNX Runtime's own: its types, texts, opsets, stored graphs; the rest is conformance."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

from runtimes.errors import BadRows, LoadError, RunError
from runtimes.onnxruntime.runtime import ONNXRuntimeOptions, ONNXRuntimeRuntime
from runtimes.options import parse
from runtimes.types import DTYPES, Batch, Ragged, RuntimeSettings

ELEMENTS = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "INT8": TensorProto.INT8,
    "UINT16": TensorProto.UINT16,
    "INT16": TensorProto.INT16,
    "UINT32": TensorProto.UINT32,
    "INT32": TensorProto.INT32,
    "UINT64": TensorProto.UINT64,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}
info = helper.make_tensor_value_info


def save(file: Path, nodes, inputs, outputs, weights=(), opset: int = 17) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    save_model(model, str(file))
    return file


def identity(folder: Path, element: int, *shape: int | str) -> Path:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return save(folder / "m.onnx", nodes, [info("x", element, shape)], [info("y", element, shape)])


def tokens(folder: Path, opset: int = 17, element: int = TensorProto.FLOAT) -> Path:
    """`input_ids`, `attention_mask` → `last_hidden_state` [-1, -1, 4]: a table's rows."""
    dtype = np.float16 if element == TensorProto.FLOAT16 else np.float32
    table = numpy_helper.from_array(np.arange(40).reshape(10, 4).astype(dtype), "table")
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["narrow"], to=TensorProto.INT32),
        helper.make_node("Gather", ["table", "narrow"], ["last_hidden_state"]),
        helper.make_node("Identity", ["attention_mask"], ["seen"]),
    ]
    names = ("input_ids", "attention_mask")
    inputs = [info(name, TensorProto.INT64, ["n", "l"]) for name in names]
    outputs = [info("last_hidden_state", element, ["n", "l", 4])]
    outputs.append(info("seen", TensorProto.INT64, ["n", "l"]))
    return save(folder / "m.onnx", nodes, inputs, outputs, [table], opset)


def loaded(source: Path, cache: Path, **changes) -> ONNXRuntimeRuntime:
    settings = RuntimeSettings("m", "onnxruntime", source, cache, threads=1, **changes)
    runtime = ONNXRuntimeRuntime(settings)
    runtime.load()
    return runtime


def one(datatype: str, values, *shape: int) -> Batch:
    data = np.empty(len(values), object) if datatype == "BYTES" else np.array(values)
    data[:] = values
    ragged = Ragged(datatype, data.astype(DTYPES[datatype]), (shape,))
    return Batch(1, np.ones(1, np.int64), {"x": ragged})


def ids(*rows: list[int]) -> Batch:
    shapes = tuple((len(row),) for row in rows)
    data = np.array([token for row in rows for token in row], np.int64)
    lengths = np.array([len(row) for row in rows])
    return Batch(len(rows), lengths, {"input_ids": Ragged("INT64", data, shapes)})


@pytest.mark.parametrize("datatype", [name for name in ELEMENTS if name != "BYTES"])
def test_every_fixed_width_type_goes_in_and_out_unharmed(tmp_path, datatype) -> None:
    runtime = loaded(identity(tmp_path, ELEMENTS[datatype], "n", 3), tmp_path)
    found = runtime.run(one(datatype, [0, 1, 1], 3)).outputs["y"]
    assert (found.datatype, found.data.dtype) == (datatype, DTYPES[datatype])
    assert found.data.astype(float).tolist() == [0, 1, 1]


def test_texts_keep_their_bytes(tmp_path) -> None:
    runtime = loaded(identity(tmp_path, TensorProto.STRING, "n", 3), tmp_path)
    values = ["é".encode(), b"", b"a\0b"]
    assert runtime.run(one("BYTES", values, 3)).outputs["y"].data.tolist() == values


def test_bytes_that_are_no_text_are_the_callers_fault(tmp_path) -> None:
    runtime = loaded(identity(tmp_path, TensorProto.STRING, "n", 1), tmp_path)
    with pytest.raises(BadRows, match="UTF-8"):
        runtime.run(one("BYTES", [b"\xff"], 1))
    assert runtime.run(one("BYTES", [b"fine"], 1)).outputs["y"].data.tolist() == [b"fine"]
    runtime.health()


def test_bf16_beside_other_types(tmp_path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)]
    shape: list[str | int | None] = ["n", 2]
    inputs = [info("x", TensorProto.BFLOAT16, shape)]
    outputs = [info("y", TensorProto.FLOAT, shape)]
    runtime = loaded(save(tmp_path / "m.onnx", nodes, inputs, outputs), tmp_path)
    assert runtime.run(one("BF16", [1.5, -2], 2)).outputs["y"].data.tolist() == [1.5, -2]


def test_id_outside_a_table_behind_a_conversion_is_the_callers_fault(tmp_path) -> None:
    runtime = loaded(tokens(tmp_path), tmp_path)
    for token in (-1, 10, 2**32):  # 2**32 would wrap to a valid id in the conversion
        with pytest.raises(BadRows, match="0 to 9"):
            runtime.run(ids([1], [token]))
    found = runtime.run(ids([0, 9])).outputs["last_hidden_state"].data
    assert found.tolist() == [0, 1, 2, 3, 36, 37, 38, 39]


@pytest.mark.parametrize(("pooling", "expected"), [("mean", [4, 5, 6, 7]), ("cls", [0, 1, 2, 3])])
def test_pooling_is_added_where_the_model_stops_at_tokens(tmp_path, pooling, expected) -> None:
    runtime = loaded(tokens(tmp_path), tmp_path, task="embed", options={"pooling": pooling})
    assert [spec.name for spec in runtime.limits().outputs] == ["sentence_embedding"]
    found = runtime.run(ids([0, 2], [1, 1, 1])).outputs["sentence_embedding"].data
    assert found[:4].tolist() == expected
    assert found[4:].tolist() == [4, 5, 6, 7]


def test_normalised_embeddings_have_length_one(tmp_path) -> None:
    options = {"pooling": "mean", "normalize": True}
    runtime = loaded(tokens(tmp_path), tmp_path, task="embed", options=options)
    found = runtime.run(ids([3, 4], [9])).outputs["sentence_embedding"].data.reshape(2, 4)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("made", "options", "named"),
    [
        ({}, {}, "option pooling"),
        ({"opset": 11}, {"pooling": "mean"}, "opset 13"),
        ({"element": TensorProto.FLOAT16}, {"pooling": "mean"}, "FP32"),
        ({}, {"embed_output": "nope"}, "embed_output"),
    ],
)
def test_what_cannot_be_pooled_says_why(tmp_path, made, options, named) -> None:
    with pytest.raises(LoadError, match=named):
        loaded(tokens(tmp_path, **made), tmp_path, task="embed", options=options)


def test_mean_pooling_without_the_mask_asks_for_it(tmp_path) -> None:
    changes = {"options": {"pooling": "mean"}, "mask_input": "nope"}
    with pytest.raises(LoadError, match=r"no input 'nope': set lengths\.mask"):
        loaded(tokens(tmp_path), tmp_path, task="embed", **changes)


def test_embedding_that_the_model_pools_itself_is_taken(tmp_path) -> None:
    source = identity(tmp_path, TensorProto.FLOAT, "n", 2)
    plain = loaded(source, tmp_path, task="embed")
    assert plain.run(one("FP32", [3, 4], 2)).outputs["y"].data.tolist() == [3, 4]
    unit = loaded(source, tmp_path, task="embed", options={"normalize": True})
    found = unit.run(one("FP32", [3, 4], 2)).outputs["sentence_embedding"]
    np.testing.assert_allclose(found.data, [0.6, 0.8], rtol=1e-6)


def test_every_output_on_the_length_axis_is_cut(tmp_path) -> None:
    found = loaded(tokens(tmp_path), tmp_path).run(ids([1, 2, 3, 4], [5])).outputs
    assert found["last_hidden_state"].shapes == ((4, 4), (1, 4))
    assert found["seen"].data.tolist() == [1, 1, 1, 1, 1]


def test_stored_graph_is_found_again(tmp_path) -> None:
    source, cache = tokens(tmp_path), tmp_path / "cache"
    loaded(source, cache)
    (stored,) = cache.glob("staged/*/model.onnx")
    before = stored.stat().st_mtime_ns
    loaded(source, cache, options={"spinning": True})  # of the session, not of the graph
    assert stored.stat().st_mtime_ns == before
    assert not list(cache.glob("staged/*/plain*"))
    loaded(source, cache, task="embed", options={"pooling": "cls"})
    assert len(list(cache.glob("staged/*/model.onnx"))) == 2


def test_external_weights_are_stored_with_the_graph(tmp_path) -> None:
    weight = numpy_helper.from_array(np.full((64, 64), 2, np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [info("x", TensorProto.FLOAT, ["n", 64])],
        [info("y", TensorProto.FLOAT, ["n", 64])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "m").mkdir()
    file = tmp_path / "m/model.onnx"
    save_model(model, str(file), save_as_external_data=True, location="w.data", size_threshold=0)
    runtime = loaded(file, tmp_path / "cache")
    shutil.rmtree(tmp_path / "m")
    assert runtime.run(one("FP32", [1] * 64, 64)).outputs["y"].data.tolist() == [128.0] * 64
    (stored,) = (tmp_path / "cache").glob("staged/*/model.onnx")
    assert sum(file.stat().st_size for file in stored.parent.iterdir()) > 64 * 64 * 4


def test_failure_of_the_graph_is_a_run_error_and_the_next_batch_runs(tmp_path) -> None:
    weight = numpy_helper.from_array(np.ones((4, 1), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    inputs = [info("x", TensorProto.FLOAT, ["n", "k"])]
    outputs = [info("y", TensorProto.FLOAT, ["n", 1])]
    runtime = loaded(save(tmp_path / "m.onnx", nodes, inputs, outputs, [weight]), tmp_path)
    with pytest.raises(RunError, match="ONNX Runtime"):
        runtime.run(one("FP32", [1, 1, 1], 3))
    assert runtime.run(one("FP32", [1, 1, 1, 1], 4)).outputs["y"].data.tolist() == [4.0]


def test_model_that_fails_at_its_own_lengths_is_a_load_error(tmp_path) -> None:
    weight = numpy_helper.from_array(np.ones((7, 1), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    inputs = [info("x", TensorProto.FLOAT, ["n", "k"])]
    outputs = [info("y", TensorProto.FLOAT, ["n", 1])]
    file = save(tmp_path / "m.onnx", nodes, inputs, outputs, [weight])
    with pytest.raises(LoadError, match="does not run"):
        loaded(file, tmp_path, length_input="x")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_precision_it_lacks_is_refused_with_who_has_it(tmp_path, precision) -> None:
    file, on_processors = identity(tmp_path, TensorProto.FLOAT, "n", 2), {"device": "cpu"}
    with pytest.raises(LoadError, match="fp32 or int8, or use openvino"):
        loaded(file, tmp_path, precision=precision, options=on_processors)


def test_rubbish_in_an_onnx_file_is_a_load_error(tmp_path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x07rubbish" * 9)
    with pytest.raises(LoadError):
        loaded(tmp_path / "m.onnx", tmp_path)


def test_ir_is_refused_with_who_runs_it(tmp_path) -> None:
    (tmp_path / "m.xml").write_text("<net/>")
    (tmp_path / "m.bin").write_bytes(b"")
    with pytest.raises(LoadError, match="openvino runtime"):
        loaded(tmp_path / "m.xml", tmp_path)


def test_options_are_checked_without_the_library() -> None:
    assert parse(ONNXRuntimeOptions, {"execution": "parallel"}).execution == "parallel"
    with pytest.raises(LoadError, match="sequential, parallel"):
        parse(ONNXRuntimeOptions, {"execution": "both"})
    code = (
        "import runtimes.onnxruntime.runtime, sys;"
        "sys.exit(bool({'onnx', 'onnxruntime'} & {*sys.modules}))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
