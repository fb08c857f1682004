"""Was a request like this one refused a moment ago, with nothing gone from the queue since?

Under overload nearly every new request is refused, and all for the same reason: the work that waits
before it. A rejection as late therefore holds for every further one-row request of that flow in
that bucket, unless the new request has more time by at least as much as the first one was late. It
holds until a row leaves the queue or a batch ends, and for `KEPT_S` at most, because forecasts move
with time too. It says nothing about other buckets, which have turns of their own.

So all but a few dozen new requests a second are refused by one look-up, and where every bucket
refuses, by their headers alone, before their bodies are read.
"""

from __future__ import annotations

from typing import Final

from routers.api.requests import FlowKey

KEPT_S: Final = 0.02


class TimesLeft:
    """The time that a request has: seconds to its deadline (or its expiry, if that is sooner), and
    seconds to its expiry."""

    left_s: float
    expires_s: float

    def __init__(self, left_s: float, expires_s: float) -> None:
        self.left_s, self.expires_s = left_s, expires_s


class CachedRejection:
    """What a one-row request was told. `times`: the time that it had. `late_by_s`: how late it was;
    0.0: it was not rejected."""

    times: TimesLeft
    late_by_s: float
    retry_after_s: float

    def __init__(self, times: TimesLeft, late_by_s: float, retry_after_s: float) -> None:
        self.times, self.late_by_s, self.retry_after_s = times, late_by_s, retry_after_s

    def holds_for(self, times: TimesLeft) -> bool:
        """Whether a request with these times is rejected too."""
        more_s = max(times.left_s - self.times.left_s, times.expires_s - self.times.expires_s)
        return more_s < self.late_by_s


_Kept = dict[tuple[FlowKey, int], tuple[CachedRejection, int, float]]
"""By flow and bucket: (rejection, rows that had left the queue by then, when it ends). Not valid
once another row has left."""


class RejectionCache:
    """The last rejection of each flow and bucket.

    What requests were told (`kept`) stands apart from what a request of unknown length would be
    told (`_foreseen`). The latter is never told to a request whose length is known, so that asking
    for it decides nothing.
    """

    def __init__(self) -> None:
        self.kept: _Kept = {}
        self._foreseen: _Kept = {}

    def keep(self, flow: FlowKey, edge: int, refused: CachedRejection, at: int, now: float) -> None:
        """Remember what a request was told. `at`: rows that have left the queue so far
        (`RequestQueue.gone`)."""
        self.kept[flow, edge] = refused, at, now + KEPT_S

    def foresee(
        self, flow: FlowKey, edge: int, refused: CachedRejection, at: int, now: float
    ) -> None:
        """Remember what a request of unknown length would be told in that bucket."""
        self._foreseen[flow, edge] = refused, at, now + KEPT_S

    def last(self, flow: FlowKey, edge: int, at: int, now: float) -> CachedRejection | None:
        """What was last told for that flow and bucket, if it is still valid."""
        return _valid(self.kept, flow, edge, at, now)

    def foreseen(self, flow: FlowKey, edge: int, at: int, now: float) -> CachedRejection | None:
        """What was last told, or else would have been told, if it is still valid."""
        told = _valid(self.kept, flow, edge, at, now)
        return told or _valid(self._foreseen, flow, edge, at, now)

    def of(
        self, flow: FlowKey, edge: int, times: TimesLeft, at: int, now: float
    ) -> CachedRejection | None:
        """The rejection that holds for a request with these times; None where none does."""
        refused = self.last(flow, edge, at, now)
        return refused if refused is not None and refused.holds_for(times) else None

    def clear(self) -> None:
        """Forget everything: a batch has ended, or settings have changed."""
        if self.kept or self._foreseen:
            self.kept.clear()
            self._foreseen.clear()


def _valid(kept: _Kept, flow: FlowKey, edge: int, at: int, now: float) -> CachedRejection | None:
    """The entry of that flow and bucket, if it is still valid; otherwise it is dropped."""
    found = kept.get((flow, edge))
    if found is None:
        return None
    refused, when, until = found
    if when != at or now >= until:
        del kept[flow, edge]
        return None
    return refused
