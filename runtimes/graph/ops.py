"""The operations that a backend's graph builder offers, so that a network is described once.

A network (`graph.bert`) is written against `GraphOps`; `runtimes.onnx.ops` and `runtimes.torch.ops`
turn the calls into nodes of their library. Pooling (`graph.pooling`), which is also added to stored
graphs, needs `PoolingOps` alone. `N` is that library's handle of a node's output. Activations are
[rows, length, width], masks int64 [rows, length].

It holds no more operations than the networks here need and is no general graph library.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeVar

import numpy as np

N = TypeVar("N")
Array = np.ndarray[Any, Any]
Activation = Literal["gelu", "gelu_tanh", "relu", "tanh"]


class PoolingOps(Protocol[N]):
    """What makes one vector of a row's tokens."""

    def multiply(self, left: N, right: N) -> N: ...

    def divide(self, left: N, right: N) -> N: ...

    def first_token(self, x: N) -> N:
        """[rows, width] of [rows, length, width]."""

    def float_mask(self, mask: N) -> N:
        """float32 [rows, length, 1] of the int64 mask."""

    def sum_over(self, x: N, axis: int) -> N:
        """The axis goes, unless it is the last, which stays with size 1."""

    def at_least(self, x: N, floor: float) -> N: ...

    def square_root(self, x: N) -> N: ...


class GraphOps(PoolingOps[N], Protocol[N]):
    """Names are for weights and inputs: unique, and kept in the stored model."""

    def ids(self, name: str) -> N:
        """An int64 input [rows, length]."""

    def lookup(self, table: Array, ids: N, name: str) -> N:
        """Rows of a [entries, width] table by id: [rows, length, width]."""

    def positions(self, table: Array, ids: N, name: str) -> N:
        """The first `length` rows of a [positions, width] table: [length, width]."""

    def add(self, left: N, right: N) -> N: ...

    def layer_norm(self, x: N, scale: Array, shift: Array, epsilon: float, name: str) -> N:
        """Over the last axis."""

    def linear(self, x: N, weight: Array, bias: Array, name: str) -> N:
        """x · weightᵀ + bias, the weight [out, in] as torch stores it."""

    def activation(self, x: N, kind: Activation) -> N: ...

    def attention_mask(self, mask: N) -> N:
        """What `attention` takes, from the int64 mask; made once, used by every layer."""

    def attention(self, query: N, key: N, value: N, mask: N, heads: int) -> N:
        """Scaled dot-product attention over `heads` slices of the last axis."""
