"""How are the operations of `GraphOps` written in OpenVINO's opset 13?

Attention is the one fused operation `scaled_dot_product_attention`, which the CPU plugin runs
without writing the scores to memory; its mask is boolean, so no dtype can overflow it. Layer
normalisation is written as MVN with scale and shift, the pattern that the plugin fuses.

Builds in memory, reads no file. Source: OpenVINO operation set 13.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from runtimes.graph.ops import Activation, Array
from runtimes.openvino.library import library

Node = Any  # openvino.Output or openvino.Node: the library is imported on use only


class OpenVINOOps:
    """`GraphOps` over OpenVINO nodes; `inputs` collects the parameters in order of creation."""

    def __init__(self) -> None:
        self._ov = library()
        self._ops = self._ov.opset13
        self.inputs: list[Node] = []

    def ids(self, name: str) -> Node:
        node = self._ops.parameter([-1, -1], np.int64, name=name)
        node.output(0).get_tensor().set_names({name})
        self.inputs.append(node)
        return node

    def lookup(self, table: Array, ids: Node, name: str) -> Node:
        return self._ops.gather(self._constant(table, name), ids, self._ints(0))

    def positions(self, table: Array, ids: Node, name: str) -> Node:
        length = self._ops.gather(self._ops.shape_of(ids), self._ints([1]), self._ints(0))
        rows = self._constant(table, name)
        return self._ops.slice(rows, self._ints([0]), length, self._ints([1]), self._ints([0]))

    def add(self, left: Node, right: Node) -> Node:
        return self._ops.add(left, right)

    def multiply(self, left: Node, right: Node) -> Node:
        return self._ops.multiply(left, right)

    def divide(self, left: Node, right: Node) -> Node:
        return self._ops.divide(left, right)

    def layer_norm(self, x: Node, scale: Array, shift: Array, epsilon: float, name: str) -> Node:
        normal = self._ops.mvn(x, self._ints([-1]), True, epsilon, "inside_sqrt")
        scaled = self._ops.multiply(normal, self._constant(scale, f"{name}weight"))
        return self._ops.add(scaled, self._constant(shift, f"{name}bias"))

    def linear(self, x: Node, weight: Array, bias: Array, name: str) -> Node:
        product = self._ops.matmul(x, self._constant(weight, f"{name}weight"), False, True)
        return self._ops.add(product, self._constant(bias, f"{name}bias"))

    def activation(self, x: Node, kind: Activation) -> Node:
        if kind in ("gelu", "gelu_tanh"):
            return self._ops.gelu(x, "erf" if kind == "gelu" else "tanh")
        return self._ops.relu(x) if kind == "relu" else self._ops.tanh(x)

    def attention_mask(self, mask: Node) -> Node:
        return self._ops.unsqueeze(self._ops.convert(mask, "boolean"), self._ints([1, 2]))

    def attention(self, query: Node, key: Node, value: Node, mask: Node, heads: int) -> Node:
        parts = [self._split(x, heads) for x in (query, key, value)]
        mixed = self._ops.scaled_dot_product_attention(*parts, mask)
        together = self._ops.transpose(mixed, self._ints([0, 2, 1, 3]))
        width = query.get_output_partial_shape(0)[2].get_length()
        return self._ops.reshape(together, self._ints([0, 0, width]), True)

    def first_token(self, x: Node) -> Node:
        return self._ops.gather(x, self._ints(0), self._ints(1))

    def float_mask(self, mask: Node) -> Node:
        return self._ops.unsqueeze(self._ops.convert(mask, "f32"), self._ints([2]))

    def sum_over(self, x: Node, axis: int) -> Node:
        return self._ops.reduce_sum(x, self._ints([axis]), axis == -1)

    def at_least(self, x: Node, floor: float) -> Node:
        return self._ops.maximum(x, self._ops.constant(np.float32(floor)))

    def square_root(self, x: Node) -> Node:
        return self._ops.sqrt(x)

    def _split(self, x: Node, heads: int) -> Node:
        width = x.get_output_partial_shape(0)[2].get_length()
        apart = self._ops.reshape(x, self._ints([0, 0, heads, width // heads]), True)
        return self._ops.transpose(apart, self._ints([0, 2, 1, 3]))

    def _constant(self, array: Array, name: str) -> Node:
        node = self._ops.constant(array)
        node.set_friendly_name(name)
        return node

    def _ints(self, values: int | list[int]) -> Node:
        return self._ops.constant(np.asarray(values, np.int64))


def network(ops: OpenVINOOps, outputs: dict[str, Node], name: str) -> Any:
    """An `openvino.Model` of what was built, whose outputs carry the given names."""
    return named(outputs, ops.inputs, name)


def named(outputs: dict[str, Node], inputs: list[Node], name: str) -> Any:
    for output_name, node in outputs.items():
        node.output(0).get_tensor().set_names({output_name})
    return library().Model(list(outputs.values()), inputs, name)
