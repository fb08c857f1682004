"""Graphs in int8 and fp8 as TensorRT takes them: which tensors are quantised, how, and the numbers.

ONNX Runtime computes them here without its optimisations: quantised and back, products in floats,
which is what the pairs mean. TensorRT's own kernels have run on no GPU yet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from runtimes import ragged_file
from runtimes.errors import LoadError
from runtimes.graph.options import GraphOptions
from runtimes.onnx.explicit_quantization import quantised
from runtimes.types import RuntimeSettings

EIGHT_BITS = pytest.mark.parametrize("precision", ["int8", "fp8"])
ELEMENTS = {"int8": TensorProto.INT8, "fp8": TensorProto.FLOAT8E4M3FN}
LARGEST = {"int8": 127.0, "fp8": 448.0}
WIDTH = 16
RANDOM = np.random.default_rng(0)
W, SMALL = (RANDOM.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(2))
W[:, 3] = 0  # a channel of zeros has a scale too
SMALL *= 1e-3
ROWS = [RANDOM.normal(size=WIDTH).astype(np.float32) for _ in range(64)]
X = np.stack(ROWS)


def graph(
    nodes: list[Any], opset: int = 20, shape: tuple[Any, ...] = ("n", WIDTH), **weights: Any
) -> Any:
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "width"])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def block(opset: int = 20) -> Any:
    """What a transformer has: products with weights, a product of activations, norm, softmax."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("Add", ["h", "b"], ["s"]),
        helper.make_node("MatMul", ["x", "v"], ["k"], "second"),
        helper.make_node("Transpose", ["k"], ["kt"]),
        helper.make_node("MatMul", ["s", "kt"], ["scores"], "attention"),
        helper.make_node("Softmax", ["scores"], ["p"]),
        helper.make_node("MatMul", ["p", "s"], ["mixed"], "mix"),
        helper.make_node("LayerNormalization", ["mixed", "one", "b"], ["n"]),
        helper.make_node("Gemm", ["n", "w", "b"], ["y"], "last", transB=1),
    ]
    one, bias = np.ones(WIDTH, np.float32), np.full(WIDTH, 0.1, np.float32)
    return graph(nodes, opset, w=W, v=SMALL, one=one, b=bias)


def made_of(
    model: Any, folder: Path, precision: str, kept: tuple[str, ...] = (), rows: Any = ROWS
) -> Any:
    ragged_file.write(folder / "samples.npz", {"x": rows})
    settings = RuntimeSettings("m", "tensorrt", None, folder / "cache", precision=precision)
    found = quantised(
        model, folder, settings, GraphOptions(calibration=str(folder), keep_fp32=kept)
    )
    onnx.checker.check_model(found, full_check=True)
    return found


def run(model: Any, x: Any = X) -> Any:
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (found,) = onnxruntime.InferenceSession(model.SerializeToString(), plain).run(None, {"x": x})
    return found


def arrays(model: Any) -> dict[str, Any]:
    return {weight.name: weight for weight in model.graph.initializer}


def makers(model: Any) -> dict[str, Any]:
    return {name: node for node in model.graph.node for name in node.output}


@EIGHT_BITS
def test_products_with_weights_read_quantised_factors_and_nothing_else_does(tmp_path, precision):
    model = made_of(block(), tmp_path, precision)
    by_output = makers(model)
    readers = {
        (node.name or node.op_type): [
            name for name in node.input
            if by_output.get(name) is not None and by_output[name].op_type == "DequantizeLinear"
        ]
        for node in model.graph.node if node.op_type != "DequantizeLinear"
    }  # fmt: skip
    assert {name: len(read) for name, read in readers.items() if read} == {
        "first": 2,
        "second": 2,
        "last": 2,
    }
    # One pair for an activation that two products read.
    assert readers["first"][0] == readers["second"][0]
    assert sum(node.op_type == "QuantizeLinear" for node in model.graph.node) == 2


@EIGHT_BITS
def test_all_is_symmetric_and_typed_as_tensorrt_takes_it(tmp_path, precision):
    model = made_of(block(), tmp_path, precision)
    stored = arrays(model)
    for node in model.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        _, scale, zero = (stored.get(name) for name in node.input)
        assert scale.data_type == TensorProto.FLOAT16  # as the tensor beside it
        assert zero.data_type == ELEMENTS[precision]
        assert not any(zero.raw_data)
        assert list(scale.dims) == list(zero.dims)
    assert {"scores", "p", "mixed"}.isdisjoint(
        name for node in model.graph.node if node.op_type == "QuantizeLinear" for name in node.input
    )
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert next(entry.version for entry in model.opset_import if not entry.domain) >= 19


def test_int8_weights_have_a_scale_a_channel_on_the_products_own_axis(tmp_path):
    model = made_of(block(), tmp_path, "int8")
    stored, by_output = arrays(model), makers(model)
    axes = {}
    for node in model.graph.node:
        if node.name in ("first", "second", "last"):
            weight = by_output[node.input[1]]
            axes[node.name] = (weight.attribute[0].i, stored[weight.input[1]].dims[0])
    assert axes == {"first": (1, WIDTH), "second": (1, WIDTH), "last": (0, WIDTH)}
    assert {w.data_type for w in stored.values() if list(w.dims) == [WIDTH, WIDTH]} == {
        TensorProto.INT8
    }


def test_fp8_weights_have_one_scale(tmp_path):
    model = made_of(block(), tmp_path, "fp8")
    scales = {name: w for name, w in arrays(model).items() if "/scale" in name}
    assert scales
    assert all(list(scale.dims) == [] for scale in scales.values())


@pytest.mark.parametrize(("precision", "cosine"), [("int8", 0.999), ("fp8", 0.998)])
def test_answers_are_those_of_fp32_but_for_rounding(tmp_path, precision, cosine):
    expected = run(block())
    found = run(made_of(block(), tmp_path, precision))
    assert found.dtype == np.float32
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert ((found * expected).sum(1) / norms).min() > cosine


@EIGHT_BITS
@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-3, 3))
def test_a_product_is_off_by_no_more_than_its_factors_steps(
    tmp_path_factory, precision, seed, exponent
):
    """Each factor is off by half a step: of the largest in int8, of itself (2^-4) in fp8."""
    random = np.random.default_rng(seed)
    weight = (random.normal(size=(WIDTH, WIDTH)) * 10.0**exponent).astype(np.float32)
    rows = [random.normal(size=WIDTH).astype(np.float32) for _ in range(32)]
    model = graph([helper.make_node("MatMul", ["x", "w"], ["y"])], w=weight)
    found = run(
        made_of(model, tmp_path_factory.mktemp("law"), precision, rows=rows), np.stack(rows)
    )
    x = np.abs(np.stack(rows)).astype(np.float64)
    w = np.abs(weight).astype(np.float64)
    if precision == "int8":
        dx, dw = np.full_like(x, x.max() / 127), np.broadcast_to(w.max(0) / 127, w.shape)
        dx, dw = dx * 0.5 + x * 2e-3, dw * 0.5 + w * 2e-3  # and of float16
    else:
        dx, dw = x / 16 + x.max() * 2**-18, w / 16 + w.max() * 2**-18
        dx, dw = dx + x * 2e-3, dw + w * 2e-3
    allowed = dx @ w + x @ dw + dx @ dw
    off = np.abs(found - np.stack(rows).astype(np.float64) @ weight)
    assert (off <= allowed * 1.01 + (x @ w) * 2e-3).all()


@EIGHT_BITS
def test_values_beyond_the_calibration_stop_at_its_largest(tmp_path, precision):
    eye = np.eye(WIDTH, dtype=np.float32)
    model = graph([helper.make_node("MatMul", ["x", "w"], ["y"])], w=eye)
    found = run(made_of(model, tmp_path, precision), np.full((1, WIDTH), 1000, np.float32))
    largest = np.abs(X).max()
    np.testing.assert_allclose(found, largest, rtol=0.02)


@EIGHT_BITS
def test_an_operation_that_is_kept_computes_in_fp32(tmp_path, precision):
    model = made_of(block(), tmp_path, precision, kept=("first", "last"))
    by_name = {node.name: node for node in model.graph.node}
    stored = arrays(model)
    assert stored[by_name["first"].input[1]].data_type == TensorProto.FLOAT
    assert stored[by_name["last"].input[1]].data_type == TensorProto.FLOAT
    assert by_name["second"].input[1].startswith("v/")


def test_convolutions_are_quantised_by_output_channel_in_int8_and_halved_in_fp8(tmp_path):
    kernel = RANDOM.normal(size=(4, 2, 3, 3)).astype(np.float32)

    def model() -> Any:
        nodes = [
            helper.make_node("Conv", ["x", "k", "b"], ["c"], "conv", pads=[1] * 4),
            helper.make_node("Flatten", ["c"], ["f"]),
            helper.make_node("MatMul", ["f", "w"], ["y"], "head"),
        ]
        w = RANDOM.normal(size=(4 * 25, 3)).astype(np.float32)
        return graph(nodes, shape=("n", 2, 5, 5), k=kernel, b=np.ones(4, np.float32), w=w)

    rows = [RANDOM.normal(size=(2, 5, 5)).astype(np.float32) for _ in range(32)]
    eight = made_of(model(), tmp_path, "int8", rows=rows)
    assert list(arrays(eight)["k/fp16/scale_0"].dims) == [4]
    bias = next(node for node in eight.graph.node if node.name == "conv").input[2]
    assert arrays(eight)[bias].data_type == TensorProto.FLOAT16
    half = made_of(model(), tmp_path, "fp8", rows=rows)
    conv = next(node for node in half.graph.node if node.name == "conv")
    assert arrays(half)[conv.input[1]].data_type == TensorProto.FLOAT16


def test_an_older_graph_is_brought_to_an_opset_that_has_the_pairs(tmp_path):
    old = made_of(block(17), tmp_path, "int8")
    np.testing.assert_allclose(run(old), run(made_of(block(), tmp_path, "int8")), atol=1e-3)


@EIGHT_BITS
def test_a_graph_without_stored_products_says_what_would_be_right(tmp_path, precision):
    model = graph([helper.make_node("Tanh", ["x"], ["y"])])
    with pytest.raises(LoadError, match="leave precision at fp32 or fp16"):
        made_of(model, tmp_path, precision)


def test_rows_that_overflow_are_named(tmp_path):
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["y"]),
    ]
    with pytest.raises(LoadError, match="make 'e' infinite or NaN"):
        made_of(graph(nodes, w=W), tmp_path, "int8", rows=[row + 1000 for row in ROWS])


def test_rows_that_become_nan_are_named(tmp_path):
    nodes = [helper.make_node("Log", ["x"], ["e"]), helper.make_node("MatMul", ["e", "w"], ["y"])]
    with pytest.raises(LoadError, match="make 'e' infinite or NaN"):
        made_of(graph(nodes, w=W), tmp_path, "int8", rows=[-np.abs(row) - 1 for row in ROWS])


@EIGHT_BITS
@pytest.mark.parametrize("largest", [100.1, 1000.7, 30_000.3])
def test_nothing_that_was_calibrated_is_cut_off(tmp_path, precision, largest):
    eye = np.eye(WIDTH, dtype=np.float32)
    model = graph([helper.make_node("MatMul", ["x", "w"], ["y"])], w=eye)
    rows = [np.full(WIDTH, largest, np.float32)] * len(ROWS)
    made = made_of(model, tmp_path, precision, rows=rows)
    scale = numpy_helper.to_array(arrays(made)["x/fp16/scale"])
    assert float(scale) * LARGEST[precision] >= np.float32(largest)


def test_an_unknown_operation_to_keep_is_refused_by_name(tmp_path):
    with pytest.raises(LoadError, match="no operation 'frist', did you mean first"):
        made_of(block(), tmp_path, "int8", kept=("frist",))


def test_weights_are_the_nearest_values_of_the_format(tmp_path):
    model = made_of(block(), tmp_path, "fp8")
    stored = arrays(model)
    scale = np.frombuffer(stored["v/fp16/scale_1"].raw_data, np.float16)[0].astype(np.float32)
    values = np.frombuffer(stored["v/fp16/quantized_1"].raw_data, ml_dtypes.float8_e4m3fn)
    back = values.astype(np.float32).reshape(WIDTH, WIDTH) * scale
    half = SMALL.astype(np.float16).astype(np.float32)
    assert (np.abs(back - half) <= np.abs(half) / 16 + scale * 2.0**-9).all()
    assert np.abs(values.astype(np.float32)).max() <= LARGEST["fp8"]
