"""Graphs in float16 and bfloat16: right types everywhere, and the numbers that they had."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from runtimes.errors import LoadError
from runtimes.onnx.precision import halved

FORMATS = pytest.mark.parametrize(("precision", "tolerance"), [("fp16", 2e-3), ("bf16", 2e-2)])
TYPES = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


def model(nodes: list[Any], **weights: np.ndarray) -> Any:
    floats = ["n", 4]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, floats)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, floats)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    return made


def run(made: Any, x: np.ndarray) -> np.ndarray:
    onnx.checker.check_model(made, full_check=True)
    (found,) = ReferenceEvaluator(made).run(None, {"x": x})
    assert found.dtype == np.float32
    return np.asarray(found)


def dense() -> Any:
    random = np.random.default_rng(0)
    return model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Add", ["h", "b"], ["s"]),
            helper.make_node("Tanh", ["s"], ["y"]),
        ],
        w=random.normal(size=(4, 4)).astype(np.float32),
        b=random.normal(size=4).astype(np.float32),
    )


TWOS = numpy_helper.from_array(np.full(4, 2.0, np.float32))
X = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)


@FORMATS
def test_products_and_weights_are_halved_and_inputs_and_outputs_are_not(precision, tolerance):
    made = halved(dense(), precision)
    np.testing.assert_allclose(run(made, X), run(dense(), X), atol=tolerance)
    assert {weight.data_type for weight in made.graph.initializer} == {TYPES[precision]}
    assert [node.op_type for node in made.graph.node] == ["Cast", "MatMul", "Add", "Tanh", "Cast"]


@FORMATS
def test_a_decomposed_norm_computes_its_variance_in_fp32(precision, tolerance):
    """1e-12 is 0 in float16, and a mean of squares may be infinite there."""

    def norm() -> Any:
        axes = {"axes": [-1]}
        return model(
            [
                helper.make_node("MatMul", ["x", "w"], ["h"]),
                helper.make_node("ReduceMean", ["h", "last"], ["m"]),
                helper.make_node("Sub", ["h", "m"], ["d"]),
                helper.make_node("Pow", ["d", "two"], ["q"]),
                helper.make_node("ReduceMean", ["q", "last"], ["v"]),
                helper.make_node("Add", ["v", "eps"], ["e"]),
                helper.make_node("Sqrt", ["e"], ["r"]),
                helper.make_node("Div", ["d", "r"], ["y"]),
            ],
            w=np.eye(4, dtype=np.float32) * 400,
            last=np.array(axes["axes"]),
            two=np.float32(2),
            eps=np.float32(1e-12),
        )

    made = halved(norm(), precision)
    np.testing.assert_allclose(run(made, X), run(norm(), X), atol=10 * tolerance)
    constant = run(made, np.zeros((1, 4), np.float32))
    assert np.isfinite(constant).all()


@FORMATS
def test_values_beyond_the_format_stay_finite(precision, tolerance):
    low = np.finfo(np.float32).min
    nodes = [helper.make_node("Tanh", ["x"], ["t"]), helper.make_node("Mul", ["t", "far"], ["y"])]
    made = halved(model(nodes, far=np.float32(low)), precision)
    (weight,) = made.graph.initializer
    dtype = np.float16 if precision == "fp16" else ml_dtypes.bfloat16
    assert np.frombuffer(weight.raw_data, dtype)[0] == ml_dtypes.finfo(dtype).min
    assert run(made, np.zeros((1, 4), np.float32)).tolist() == [[0.0] * 4]


@FORMATS
def test_constants_and_casts_in_the_graph_follow(precision, tolerance):
    def made() -> Any:
        return model(
            [
                helper.make_node("Constant", [], ["c"], value_float=0.5),
                helper.make_node("Constant", [], ["t"], value=TWOS),
                helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.INT64),
                helper.make_node("Cast", ["whole"], ["back"], to=TensorProto.FLOAT),
                helper.make_node("Mul", ["back", "c"], ["h"]),
                helper.make_node("Add", ["h", "t"], ["a"]),
                helper.make_node("Shape", ["a"], ["sizes"]),
                helper.make_node("ConstantOfShape", ["sizes"], ["zeros"]),
                helper.make_node("Add", ["a", "zeros"], ["y"]),
            ]
        )  # fmt: skip

    np.testing.assert_allclose(
        run(halved(made(), precision), X * 9), run(made(), X * 9), atol=tolerance
    )


@FORMATS
def test_a_weight_that_both_kinds_use_is_kept_both_ways(precision, tolerance):
    def made() -> Any:
        nodes = [
            helper.make_node("Tanh", ["x"], ["s"]),
            helper.make_node("Mul", ["s", "w"], ["h"]),
            helper.make_node("Tanh", ["h"], ["t"]),
            helper.make_node("Div", ["t", "w"], ["y"]),
        ]
        return model(nodes, w=np.array([1, 3, 5, 7], np.float32))

    got = halved(made(), precision)
    assert sorted(weight.name for weight in got.graph.initializer) == ["w", f"w/{precision}"]
    np.testing.assert_allclose(run(got, X), run(made(), X), atol=tolerance)


def test_onnx_runtime_opens_it_too():
    session = onnxruntime.InferenceSession(halved(dense(), "fp16").SerializeToString())
    np.testing.assert_allclose(session.run(None, {"x": X})[0], run(dense(), X), atol=2e-3)


def test_a_graph_with_branches_is_refused():
    inner = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["i"])], "b", [],
        [helper.make_tensor_value_info("i", TensorProto.FLOAT, None)],
    )  # fmt: skip
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)]
    graph = helper.make_graph(nodes, "g", [], [])
    with pytest.raises(LoadError, match="leave precision at fp32"):
        halved(helper.make_model(graph), "bf16")
