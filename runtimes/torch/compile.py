"""Compiles a torch model at the start, so that no request waits for the compiler.

Rows and length are dynamic sizes of one compiled graph. torch specialises a size of 1, so a batch
of a single row has a second graph. Both graphs are compiled at the start. A later batch whose shape
would need another graph runs uncompiled instead.

Lengths are at least 2, since a length of 1 would need a graph of its own. The compiler caches its
results in the folder that the process has set for it. Source: torch's documentation of dynamic
shapes and of `torch.compiler.set_stance`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from runtimes.errors import LoadError

SHORTEST = 2  # tokens of a row: torch would compile a size of 1 separately
COMPILED_ROWS = (2, 1)  # the general graph first: it takes every batch but a single row
PROBE_LENGTH = 3  # differs from both numbers of rows, or torch would take the two sizes for one


class CompiledCall:
    """A module whose first calls compile it; after `seal`, calls compile nothing.

    Called with tensors in the inputs' order.
    """

    def __init__(self, module: Any) -> None:
        self._module = torch.compile(module)
        self._sealed = False

    def __call__(self, *tensors: torch.Tensor, **named: torch.Tensor) -> Any:
        if not self._sealed:
            return self._module(*tensors, **named)
        with torch.compiler.set_stance("eager_on_recompile"):
            return self._module(*tensors, **named)

    def seal(self) -> None:
        """From now on, a shape without a compiled graph runs uncompiled."""
        self._sealed = True


def compile_all(
    call: Callable[..., Any],
    examples: Callable[[int], Sequence[torch.Tensor]],
    lengthwise: Sequence[int | None],
    progress: Callable[[str, float], None],
) -> None:
    """Compiles `call` for both numbers of rows. Raises `LoadError` if the compiler fails.

    `examples(rows)`: input tensors of so many rows. `lengthwise`: for each input, the axis that
    follows the length, if one does.
    """
    for done, rows in enumerate(COMPILED_ROWS):
        progress("compiling", done / len(COMPILED_ROWS))
        tensors = examples(rows)
        for tensor, axis in zip(tensors, lengthwise, strict=True):
            _mark(tensor, 0)
            _mark(tensor, axis)
        try:
            with torch.inference_mode():
                call(*tensors)
        except Exception as error:  # the compiler raises many types
            raise LoadError(
                f"torch cannot compile the model, set option mode to eager: {error}"
            ) from error
    progress("compiling", 1.0)


def _mark(tensor: torch.Tensor, axis: int | None) -> None:
    if axis is not None and tensor.shape[axis] > 1:
        torch._dynamo.maybe_mark_dynamic(tensor, axis)  # type: ignore[no-untyped-call]
