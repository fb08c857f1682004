"""A torch model compiled without any caller ever waiting for a compiler.

Rows and length are dynamic sizes of one compiled graph; only a batch of a single row, which torch
specialises, has a graph of its own. So there are two graphs (one for rows without a fixed size
elsewhere), both made at the start, and later shapes compile nothing: a batch that would need
another graph runs uncompiled instead.

Lengths are at least 2, as a size of 1 would be a graph of its own. What the compiler made is kept
by its own cache, in the folder that the process has set for it. Source: torch's documentation of
dynamic shapes and of `torch.compiler.set_stance`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from runtimes.errors import LoadError

SHORTEST = 2  # tokens a row: a size of 1 is compiled apart
COMPILED_ROWS = (2, 1)  # the general graph first: it takes in all but a single row
PROBE_LENGTH = 3  # unlike both numbers of rows, or torch would take the two sizes for one


class CompiledCall:
    """`module`, compiled once `compile` has run; called with tensors in the inputs' order."""

    def __init__(self, module: Any) -> None:
        self._module = torch.compile(module)
        self._sealed = False

    def __call__(self, *tensors: torch.Tensor, **named: torch.Tensor) -> Any:
        if not self._sealed:
            return self._module(*tensors, **named)
        with torch.compiler.set_stance("eager_on_recompile"):
            return self._module(*tensors, **named)

    def seal(self) -> None:
        """From here on nothing is compiled."""
        self._sealed = True


def compile_all(
    call: Callable[..., Any],
    examples: Callable[[int], Sequence[torch.Tensor]],
    lengthwise: Sequence[int | None],
    progress: Callable[[str, float], None],
) -> None:
    """`examples(rows)`: tensors of so many rows; `lengthwise`: each one's axis that follows the
    length. Raises `LoadError` where the compiler fails."""
    for done, rows in enumerate(COMPILED_ROWS):
        progress("compiling", done / len(COMPILED_ROWS))
        tensors = examples(rows)
        for tensor, axis in zip(tensors, lengthwise, strict=True):
            _mark(tensor, 0)
            _mark(tensor, axis)
        try:
            with torch.inference_mode():
                call(*tensors)
        except Exception as error:  # the compiler raises its whole range
            raise LoadError(
                f"torch cannot compile the model, set option mode to eager: {error}"
            ) from error
    progress("compiling", 1.0)


def _mark(tensor: torch.Tensor, axis: int | None) -> None:
    if axis is not None and tensor.shape[axis] > 1:
        torch._dynamo.maybe_mark_dynamic(tensor, axis)  # type: ignore[no-untyped-call]
