"""How long does a row take from dispatch to answer, and so when must it start to be in time?

The latest start is the deadline less the turnaround of the row's bucket: its mean plus 2 mean
deviations, as in TCP's retransmission timer (RFC 6298). At most half of the request's budget is set
aside for it, so that one hiccup does not demote every new request.
"""

from __future__ import annotations

from typing import Final

_MEAN_GAIN: Final = 0.125
_DEVIATION_GAIN: Final = 0.25
_DEVIATIONS: Final = 2.0
_MAX_MARGIN: Final = 0.5  # of the budget a request arrived with


class _Seen:
    """What was measured of one bucket."""

    mean_s: float
    deviation_s: float

    def __init__(self, mean_s: float, deviation_s: float) -> None:
        self.mean_s, self.deviation_s = mean_s, deviation_s


class Turnaround:
    """Seconds from dispatch to answer, by bucket edge: mean and mean deviation, both EWMAs.

    Transport, waiting at the replica and service are part of it; the queue wait is not. Buckets
    that were not measured are assumed to take `initial_s`.
    """

    def __init__(self) -> None:
        self._initial_s = 0.0
        self._seen: dict[int, _Seen | None] = {}  # by edge; None: not measured

    def keep(self, edges: tuple[int, ...], initial_s: float) -> None:
        """These are the buckets now. Others are dropped, once each new bucket has taken its first
        guess from the next longer one that was measured."""
        self._initial_s = initial_s
        known = self._seen
        self._seen = {edge: known.get(edge) or _next_longer(known, edge) for edge in edges}

    def observe(self, edge: int, seconds: float) -> None:
        """A row of the bucket was answered so many seconds after its dispatch."""
        if edge not in self._seen:
            return
        known = self._seen[edge]
        if known is None:
            self._seen[edge] = _Seen(seconds, seconds / 4.0)
            return
        off = seconds - known.mean_s
        known.deviation_s += _DEVIATION_GAIN * (abs(off) - known.deviation_s)
        known.mean_s += _MEAN_GAIN * off

    def margin_s(self, edge: int) -> float:
        """Seconds to set aside for the turnaround of the bucket."""
        known = self._seen.get(edge)
        return self._initial_s if known is None else known.mean_s + _DEVIATIONS * known.deviation_s

    def typical_s(self) -> tuple[float, float]:
        """Mean turnaround and margin over the buckets that were measured; if none was, the assumed
        one for both."""
        seen = [known for known in self._seen.values() if known is not None]
        if not seen:
            return self._initial_s, self._initial_s
        mean_s = sum([each.mean_s for each in seen]) / len(seen)
        return mean_s, mean_s + _DEVIATIONS * sum([each.deviation_s for each in seen]) / len(seen)

    def latest_start(self, edge: int, now: float, deadline: float) -> float:
        """When a row must be dispatched at the latest to be answered by the deadline."""
        margin_s, max_s = self.margin_s(edge), _MAX_MARGIN * (deadline - now)
        return deadline - (margin_s if margin_s < max_s else max(0.0, max_s))


def _next_longer(known: dict[int, _Seen | None], edge: int) -> _Seen | None:
    """As much as was measured of the next longer bucket; None: nothing was."""
    longer = [other for other, seen in known.items() if other >= edge and seen is not None]
    found = known[min(longer)] if longer else None
    return None if found is None else _Seen(found.mean_s, found.deviation_s)
