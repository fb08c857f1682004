"""Implements the operations of `GraphOps` as ONNX nodes.

They are standard operators of opset 20, and ONNX Runtime's own `MultiHeadAttention` for attention.
ONNX Runtime's optimiser does not recognise attention in standard operators, and its own node was up
to a quarter faster on CPU. OpenVINO reads that node too. TensorRT does not: `StandardOps` writes
attention in standard operators.

Weights become initialisers; the caller stores the model. Source: ONNX operator reference, and ONNX
Runtime's contrib operators.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from runtimes.graph.pooling import Activation, Array

OPSET = 20
IR_VERSION = 10
CONTRIB = "com.microsoft"


class ONNXOps:
    """`GraphOps` whose values are names in an ONNX graph.

    `prefix` begins every new name, so that none equals a name in a graph that exists already.
    """

    def __init__(self, prefix: str = "") -> None:
        self.inputs: list[Any] = []
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._prefix = prefix
        self._counter = itertools.count()
        self._known: dict[tuple[int, ...], str] = {}

    def ids(self, name: str) -> str:
        shape = ["rows", "length"]
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, shape))
        return name

    def lookup(self, table: Array, ids: str, name: str) -> str:
        return self._node("Gather", self._weight(table, name), ids)

    def positions(self, table: Array, ids: str, name: str) -> str:
        length = self._node("Shape", ids, start=1, end=2)
        rows = self._weight(table, name)
        return self._node("Slice", rows, self._ints(0), length, self._ints(0))

    def add(self, left: str, right: str) -> str:
        return self._node("Add", left, right)

    def multiply(self, left: str, right: str) -> str:
        return self._node("Mul", left, right)

    def divide(self, left: str, right: str) -> str:
        return self._node("Div", left, right)

    def layer_norm(self, x: str, scale: Array, shift: Array, epsilon: float, name: str) -> str:
        parts = (x, self._weight(scale, f"{name}weight"), self._weight(shift, f"{name}bias"))
        return self._node("LayerNormalization", *parts, axis=-1, epsilon=epsilon)

    def linear(self, x: str, weight: Array, bias: Array, name: str) -> str:
        turned = self._weight(np.ascontiguousarray(weight.T), f"{name}weight")
        product = self._node("MatMul", x, turned)
        return self._node("Add", product, self._weight(bias, f"{name}bias"))

    def activation(self, x: str, kind: Activation) -> str:
        if kind in ("gelu", "gelu_tanh"):
            return self._node("Gelu", x, approximate="none" if kind == "gelu" else "tanh")
        return self._node("Relu" if kind == "relu" else "Tanh", x)

    def attention_mask(self, mask: str) -> str:
        return self._node("Cast", mask, to=TensorProto.INT32)

    def attention(self, query: str, key: str, value: str, mask: str, heads: int) -> str:
        parts = (query, key, value, "", mask)
        return self._node("MultiHeadAttention", *parts, num_heads=heads, domain=CONTRIB)

    def first_token(self, x: str) -> str:
        first = self._weight(np.asarray(0, np.int64), f"scalar_{next(self._counter)}")
        return self._node("Gather", x, first, axis=1)

    def float_mask(self, mask: str) -> str:
        return self._node(
            "Unsqueeze", self._node("Cast", mask, to=TensorProto.FLOAT), self._ints(2)
        )

    def sum_over(self, x: str, axis: int) -> str:
        return self._node("ReduceSum", x, self._ints(axis), keepdims=int(axis == -1))

    def at_least(self, x: str, floor: float) -> str:
        return self._node("Max", x, self._float(floor))

    def square_root(self, x: str) -> str:
        return self._node("Sqrt", x)

    def _node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"{self._prefix}{kind}_{next(self._counter)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], output, **attributes))
        return output

    def _weight(self, array: Array, name: str) -> str:
        self.initializers.append(numpy_helper.from_array(array, f"{self._prefix}{name}"))
        return f"{self._prefix}{name}"

    def _ints(self, *values: int) -> str:
        if values not in self._known:
            name = f"{self._prefix}ints_{'_'.join(map(str, values))}"
            self._known[values] = self._weight(np.asarray(values, np.int64), name)
        return self._known[values]

    def _float(self, value: float) -> str:
        return self._weight(np.asarray(value, np.float32), f"float_{next(self._counter)}")


class StandardOps(ONNXOps):
    """Without operators of ONNX Runtime's own, and in float16 without values beyond its range."""

    _FAR = -65504.0  # the lowest finite float16; added to scores of padding, whose share is then 0

    def __init__(self, prefix: str = "") -> None:
        super().__init__(prefix)
        self._widths: dict[str, int] = {}  # of what `linear` made

    def linear(self, x: str, weight: Array, bias: Array, name: str) -> str:
        made = super().linear(x, weight, bias, name)
        self._widths[made] = bias.shape[0]
        return made

    def attention_mask(self, mask: str) -> str:
        real = self._node("Cast", mask, to=TensorProto.FLOAT)
        padding = self._node("Sub", self._float(1.0), real)
        far = self._node("Mul", padding, self._float(self._FAR))
        return self._node("Unsqueeze", far, self._ints(1, 2))

    def attention(self, query: str, key: str, value: str, mask: str, heads: int) -> str:
        head_width = self._widths[query] // heads
        split = self._ints(0, 0, heads, head_width)  # 0: as the input has it
        parts = [self._node("Reshape", part, split) for part in (query, key, value)]
        q, v = (self._node("Transpose", part, perm=[0, 2, 1, 3]) for part in parts[::2])
        k = self._node("Transpose", parts[1], perm=[0, 2, 3, 1])
        scaled = self._node("Mul", q, self._float(head_width**-0.5))
        scores = self._node("Add", self._node("MatMul", scaled, k), mask)
        mixed = self._node("MatMul", self._node("Softmax", scores, axis=-1), v)
        joined = self._node("Transpose", mixed, perm=[0, 2, 1, 3])
        return self._node("Reshape", joined, self._ints(0, 0, self._widths[query]))


def model(ops: ONNXOps, outputs: dict[str, tuple[str, list[int | str]]], name: str) -> Any:
    """A `ModelProto`; `outputs` maps a public name to (value, shape), all float32."""
    infos = []
    for public, (value, shape) in outputs.items():
        ops.nodes.append(helper.make_node("Identity", [value], [public], f"{public}_out"))
        infos.append(helper.make_tensor_value_info(public, TensorProto.FLOAT, shape))
    graph = helper.make_graph(ops.nodes, name, ops.inputs, infos, ops.initializers)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
