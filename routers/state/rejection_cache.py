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


_Kept = dict[tuple[FlowKey, int], tuple[CachedRejection, int, float]]


class RejectionCache:
    """Of each flow and bucket. `kept`: what was told to a request; `_foreseen`: what would be told
    to one whose length nobody knows, which is never told to one whose length is known, so that
    asking decides nothing."""

    def __init__(self) -> None:
        self.kept: _Kept = {}
        self._foreseen: _Kept = {}

    def keep(self, flow: FlowKey, edge: int, refused: CachedRejection, at: int, now: float) -> None:
        """`at`: rows that had left the queue so far: at another count it does not hold."""
        self.kept[flow, edge] = refused, at, now + KEPT_S

    def foresee(
        self, flow: FlowKey, edge: int, refused: CachedRejection, at: int, now: float
    ) -> None:
        self._foreseen[flow, edge] = refused, at, now + KEPT_S

    def last(self, flow: FlowKey, edge: int, at: int, now: float) -> CachedRejection | None:
        """What was told in that bucket a moment ago, if that still stands."""
        return _standing(self.kept, flow, edge, at, now)

    def foreseen(self, flow: FlowKey, edge: int, at: int, now: float) -> CachedRejection | None:
        """What was told, or would have been."""
        told = _standing(self.kept, flow, edge, at, now)
        return told or _standing(self._foreseen, flow, edge, at, now)

    def of(
        self, flow: FlowKey, edge: int, times: TimesLeft, at: int, now: float
    ) -> CachedRejection | None:
        """The rejection that holds for such a row too."""
        refused = self.last(flow, edge, at, now)
        return refused if refused is not None and refused.holds_for(times) else None

    def clear(self) -> None:
        """A batch has ended, or settings are others: every request is judged anew."""
        self.kept.clear()
        self._foreseen.clear()


def _standing(kept: _Kept, flow: FlowKey, edge: int, at: int, now: float) -> CachedRejection | None:
    found = kept.get((flow, edge))
    if found is None:
        return None
    refused, when, until = found
    if when != at or now >= until:
        del kept[flow, edge]
        return None
    return refused
