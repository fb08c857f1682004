"""What a request's rows look like while they queue: flat inputs, shapes, lengths.

Shared by the way in (`split`) and the way out (`joined`); lengths are tokens, or whatever the
model's length is. Nothing here is padded or copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deployments.gateway.http.protocols.tensors import Array


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
