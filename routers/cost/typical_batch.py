"""What is the usual batch of a bucket?

Moving averages of rows and width over the batches that the bucket led (the last ten count for two
thirds). The quotient of averages, not the average of quotients, is what a row costs where small and
full batches take turns. Until a batch was measured: half of what one may hold, at full width.
"""

from __future__ import annotations

from dataclasses import dataclass

_GAIN = 0.1
_FIRST_FILL = 0.5


@dataclass(slots=True)
class Usual:
    rows: float
    width: float


class UsualBatches:
    """`max_size` rows and `max_tokens` tokens are the most that a batch may hold."""

    def __init__(self, max_size: int, max_tokens: int) -> None:
        self._max_size = max_size
        self._max_tokens = max_tokens
        self._by_edge: dict[int, Usual] = {}

    def of(self, edge: int) -> Usual:
        return self._by_edge.get(edge) or self._assumed(edge)

    def observe(self, edge: int, rows: int, width: int) -> None:
        usual = self._by_edge.get(edge)
        if usual is None:
            self._by_edge[edge] = Usual(rows, width)
        else:
            usual.rows += _GAIN * (rows - usual.rows)
            usual.width += _GAIN * (width - usual.width)

    def _assumed(self, edge: int) -> Usual:
        most = min(self._max_size, self._max_tokens // max(1, edge))
        return Usual(max(1.0, _FIRST_FILL * most), edge)
