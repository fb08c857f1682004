"""What a request's rows look like while they queue, and what a row's answer is.

Inputs are flat, with shapes and lengths; lengths are tokens, or whatever the model's length is.
Nothing here is padded or copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deployments.contract import errors
from deployments.gateway.http.protocols.tensors import Array


@dataclass(slots=True)
class RowAnswer:
    """One row's outputs by name (datatype, array), or its error; which version of the model
    answered, and how the time was spent."""

    outputs: dict[str, tuple[str, np.ndarray[Any, Any]]] = field(default_factory=dict)
    error: errors.HeadraceError | None = None
    dispatched: float = 0.0
    service_s: float = 0.0
    batch_size: int = 0
    bucket: int = 0
    version: str = ""

    @property
    def failed(self) -> bool:
        """Whether the runtime failed on the row, which may therefore run again."""
        return isinstance(self.error, errors.RowFailed)


@dataclass(slots=True)
class RowColumn:
    """One input of all rows: `rows` 1-D contiguous arrays, `shapes` without the batch axis."""

    datatype: str
    rows: list[Array]
    shapes: list[tuple[int, ...]]

    def only(self, kept: Sequence[int]) -> RowColumn:
        return RowColumn(
            self.datatype, [self.rows[row] for row in kept], [self.shapes[row] for row in kept]
        )


@dataclass(slots=True)
class Rows:
    """`count` rows of `lengths` (tokens); `outputs` are the wanted ones, None for all."""

    count: int
    lengths: tuple[int, ...]
    inputs: dict[str, RowColumn]
    outputs: tuple[str, ...] | None = None

    def only(self, kept: Sequence[int]) -> Rows:
        """Those rows alone, in this order."""
        return Rows(
            len(kept),
            tuple(self.lengths[row] for row in kept),
            {name: column.only(kept) for name, column in self.inputs.items()},
            self.outputs,
        )
