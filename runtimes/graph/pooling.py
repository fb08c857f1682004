"""The operations that a backend's graph builder offers, and pooling, which is written with them.

A network (`graph.bert`) is written against `GraphOps`; `runtimes.onnx.ops` turns the calls into
nodes. It holds no more operations than the networks need.

Pooling of a stored graph makes one vector of a text's tokens: the mean over the real ones or the
first ([CLS]), then, if declared, scaled to length 1. The options of a model speak first, then what
its folder declares (`runtimes.folder`). The arithmetic stays in float32. Poolings of other kinds
are part of the network that `runtimes.torch.encoder` makes.
Source: sentence-transformers' modules `Pooling` and `Normalize`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from runtimes.errors import LoadError
from runtimes.folder import Pooling
from runtimes.graph.options import GraphOptions
from runtimes.types import TensorSpec

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


HIDDEN_OUTPUT, EMBEDDING_OUTPUT = "last_hidden_state", "sentence_embedding"
SPARSE_WIDTH = 256  # entries of a sparse vector that are kept, the largest
SMALLEST_NORM = 1e-12  # torch.nn.functional.normalize
FEWEST_TOKENS = 1e-9  # sentence-transformers' clamp: an empty row gives zeros, no NaN


def pool(ops: PoolingOps[N], hidden: N, mask: N, pooling: Pooling) -> N:
    """[rows, width] of [rows, length, width] and the int64 mask; `pooling` is plain."""
    pooled = hidden
    if pooling.modes:
        mean = pooling.modes == ("mean",)
        pooled = _mean(ops, hidden, mask) if mean else ops.first_token(hidden)
    if not pooling.normalize:
        return pooled
    # sqrt(Σx²) floored, rather than a library's own L2 norm: those differ in where eps goes.
    norm = ops.square_root(ops.sum_over(ops.multiply(pooled, pooled), -1))
    return ops.divide(pooled, ops.at_least(norm, SMALLEST_NORM))


def mask_of(inputs: Container[str], pooling: Pooling, configured: str | None) -> str:
    """The name of the mask among a graph's inputs. Raises `LoadError` where it is needed and
    missing."""
    name = configured or "attention_mask"
    if pooling.modes == ("mean",) and name not in inputs:
        raise LoadError(
            f"mean pooling needs a mask, and the model has no input '{name}': set lengths.mask"
        )
    return name


def of_graph(outputs: Sequence[TensorSpec], options: GraphOptions) -> tuple[str, Pooling]:
    """For task `embed`: the output to take and what is left to do with it. Raises `LoadError`."""
    spec = _embedding(outputs, options)
    normalize = bool(options.normalize)
    if len(spec.shape) == 2:
        return spec.name, Pooling((), normalize)
    if len(spec.shape) != 3:
        raise LoadError(f"output '{spec.name}' is {list(spec.shape)}: no embedding, no tokens")
    if not options.pooling:
        raise LoadError(
            f"output '{spec.name}' holds a vector for each token: set the option pooling "
            "(mean or cls), and normalize where the model was trained so"
        )
    found = Pooling((options.pooling,), normalize)
    if not found.plain:
        raise LoadError(
            f"option 'pooling' is {options.pooling}; of a file it may be mean or cls, the others "
            "are for folders"
        )
    return spec.name, found


def _embedding(outputs: Sequence[TensorSpec], options: GraphOptions) -> TensorSpec:
    specs = {spec.name: spec for spec in outputs}
    only = list(specs) if len(specs) == 1 else []
    names = [EMBEDDING_OUTPUT, HIDDEN_OUTPUT, *only]
    for name in [options.embed_output] if options.embed_output else names:
        if name in specs:
            return specs[name]
    raise LoadError(f"set the option embed_output to one of the outputs {', '.join(specs)}")


def _mean(ops: PoolingOps[N], hidden: N, mask: N) -> N:
    weights = ops.float_mask(mask)
    total = ops.sum_over(ops.multiply(hidden, weights), 1)
    return ops.divide(total, ops.at_least(ops.sum_over(weights, 1), FEWEST_TOKENS))
