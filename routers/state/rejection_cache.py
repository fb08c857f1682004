"""Was the like of this refused a moment ago, with nothing gone from the queue since?

Under overload nearly every new request is refused, all for the same reason: what waits before them.
A rejection as late holds for every further one-row request of that flow, in that bucket, that has
not more time by as much as the first was late; until a row leaves the queue or a batch ends, and
for `KEPT_S` at most, since forecasts move with time too. It says nothing of other buckets: each has
turns of its own. So all but a few dozen new requests a second are refused by a look, and where
every bucket refuses, by their headers alone, before their bodies are read.
"""

from __future__ import annotations

from dataclasses import dataclass

from routers.api.requests import FlowKey

KEPT_S = 0.02


@dataclass(frozen=True, slots=True)
class TimesLeft:
    """Seconds from now to the deadline (or the expiry, if that is sooner), and to the expiry."""

    left_s: float
    expires_s: float


@dataclass(frozen=True, slots=True)
class CachedRejection:
    """`times`: what it had; `late_by_s`: how late it was; 0.0: it was not rejected."""

    times: TimesLeft
    late_by_s: float
    retry_after_s: float

    def holds_for(self, times: TimesLeft) -> bool:
        more_s = max(times.left_s - self.times.left_s, times.expires_s - self.times.expires_s)
        return more_s < self.late_by_s


class RejectionCache:
    """`kept`: of each flow and bucket, what was refused, and `at` how many rows that had left the
    queue so far: what was refused at another count does not count."""

    def __init__(self) -> None:
        self.kept: dict[tuple[FlowKey, int], tuple[CachedRejection, int, float]] = {}

    def keep(self, flow: FlowKey, edge: int, refused: CachedRejection, at: int, now: float) -> None:
        self.kept[flow, edge] = refused, at, now + KEPT_S

    def last(self, flow: FlowKey, edge: int, at: int, now: float) -> CachedRejection | None:
        """What was found of that bucket a moment ago, if that still stands."""
        kept = self.kept.get((flow, edge))
        if kept is None:
            return None
        refused, when, until = kept
        if when != at or now >= until:
            del self.kept[flow, edge]
            return None
        return refused

    def of(
        self, flow: FlowKey, edge: int, times: TimesLeft, at: int, now: float
    ) -> CachedRejection | None:
        """The rejection that holds for such a row too."""
        refused = self.last(flow, edge, at, now)
        return refused if refused is not None and refused.holds_for(times) else None

    def clear(self) -> None:
        """A batch has ended, or settings are others: every request is judged anew."""
        self.kept.clear()
