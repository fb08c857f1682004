"""How many rows should a batch have, and is it worth waiting for one more?

The target is the largest batch within three bounds: rows, tokens, and predicted seconds as a share
of the SLO (because a new request waits for the batch that runs). It is kept for each edge until the
cost model has learnt from `_REFRESH` more batches. Whether an idle replica should wait for one more
row is decided by the summed latency of the rows, with and without waiting.

Source: (1 + 1/n)·T(b) <= SLO for n staggered replicas (Symphony, arXiv 2308.07470), n = 1 here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from routers.api.settings import DispatcherSettings
from routers.estimates.cost.model import CostModel

MAX_PASSED: Final = 0.6  # of the SLO: how long a bucket may wait while fuller ones go first
GUESTS: Final = 0.25  # of a batch's most seconds: what flows above their share may fill for others
_REFRESH: Final = 8  # measured batches after which a target is computed anew
_RATE_GAIN: Final = 0.1


class _Target:
    """A full batch of rows as long as an edge."""

    rows: int  # by number and predicted seconds, without the bound in tokens
    full_rows: int  # as many as all three bounds allow; at least 1
    full_s: float  # predicted seconds of those
    row_s: float  # one row's part of these seconds
    learnt: int  # batches that the cost model had learnt from when this was computed

    def __init__(self, rows: int, full_rows: int, full_s: float, learnt: int) -> None:
        self.rows, self.full_rows, self.full_s = rows, full_rows, full_s
        self.row_s, self.learnt = full_s / full_rows, learnt


class BatchSizes:
    """Batch sizes of one group."""

    def __init__(self, settings: DispatcherSettings, cost: CostModel) -> None:
        self._settings = settings
        self._cost = cost
        self.max_passed_s = MAX_PASSED * settings.slo_s
        # Settings that are read for each row or batch: a field of them costs a look-up by name.
        self.pads, self.fixed_shapes = settings.pads, settings.buckets.fixed_shapes
        self.max_tokens, self.switch_s = settings.max_tokens, settings.buckets.switch_s
        self.is_profiled = bool(settings.profile)
        is_fixed = settings.fixed_size is not None
        self._max_s = inf if is_fixed else settings.max_slo_share * settings.slo_s
        self._targets: dict[int, _Target] = {}

    def max_rows(self, width: int) -> int:
        """Rows of that width that a batch may have by number and predicted seconds; at least 1."""
        return self._of(width).rows

    def target(self, edge: int) -> int:
        """Rows of a full batch of rows as long as `edge`, within the bound in tokens too; at least
        1."""
        return self._of(edge).full_rows

    def part_rows(self, edge: int) -> int:
        """Rows of a batch that flows above their share may fill: `GUESTS` of the longest batch's
        seconds."""
        target = self._of(edge)
        if target.full_s <= GUESTS * self.max_s():
            return target.rows
        return max(1, int(target.rows * GUESTS * self.max_s() / target.full_s))

    def full_s(self, edge: int) -> float:
        """Predicted seconds of a full batch."""
        return self._of(edge).full_s

    def shown(self, edge: int) -> tuple[int, float]:
        """Rows and predicted seconds of a full batch, for metrics: asking changes no later
        answer."""
        target = self._targets.get(edge) or self._compute(edge)
        return target.full_rows, target.full_s

    def row_s(self, edge: int) -> float:
        """One row's part of a full batch, predicted seconds."""
        return self._of(edge).row_s

    def max_s(self) -> float:
        """Predicted seconds that a batch of more than one row may take."""
        return self._max_s

    def _of(self, edge: int) -> _Target:
        target = self._targets.get(edge)
        if target is None or self._cost.learnt - target.learnt >= _REFRESH:
            if len(self._targets) > 64:
                self._targets.clear()
            known = 1 if target is None else target.rows
            target = self._targets[edge] = self._compute(edge, known)
        return target

    def _compute(self, edge: int, known: int = 1) -> _Target:
        """`known`: rows that were found last."""
        settings, cost = self._settings, self._cost
        most = settings.fixed_size or settings.max_size
        rows, high = 1, max(1, min(most, settings.max_size))
        max_s = self.max_s()
        if 1 < known <= high and cost.predict(known, edge) <= max_s:
            rows = known
            if known < high and cost.predict(known + 1, edge) > max_s:
                high = known
        while rows < high:  # the largest that fits, by halving
            middle = (rows + high + 1) // 2
            if cost.predict(middle, edge) <= max_s:
                rows = middle
            else:
                high = middle - 1
        full = max(1, min(rows, self.max_tokens // edge))
        full_s = cost.predict(full, edge)
        return _Target(rows, full, full_s, cost.learnt)


@dataclass(slots=True)
class Gaps:
    """Mean seconds between arrivals in one bucket (EWMA); inf until two rows have come."""

    mean_s: float = inf
    last: float | None = None

    def arrived(self, now: float) -> None:
        """A row of this bucket arrived."""
        if self.last is not None:
            gap = now - self.last
            known = self.mean_s
            self.mean_s = gap if known == inf else known + _RATE_GAIN * (gap - known)
        self.last = now


def gap_s(gaps: Mapping[int, Gaps], edge: int) -> float:
    """Mean seconds between arrivals in a bucket; inf while not known."""
    gap = gaps.get(edge)
    return max(1e-9, gap.mean_s) if gap is not None else inf


def pays_to_wait(rows: int, gap_s: float, alone_s: float, now_s: float, then_s: float) -> bool:
    """Whether `rows` rows, and the one expected in `gap_s`, have a smaller sum of latencies if
    served together. `alone_s`, `now_s`, `then_s`: predicted seconds of batches of 1, `rows` and
    `rows` + 1."""
    waiting_s = rows * (gap_s + then_s) + then_s
    apart_s = rows * now_s + max(now_s - gap_s, 0.0) + alone_s
    return waiting_s < apart_s
