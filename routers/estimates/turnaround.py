"""How long from dispatch to answer, and so when a request must start to be in time?

The latest start is the deadline less what dispatch to answer has lately taken for its bucket (mean
and 2 mean deviations, as TCP's retransmission timer does, RFC 6298), but never less than half of
the request's budget: a hiccup may not demote everybody on arrival.
"""

from __future__ import annotations

_MEAN_GAIN = 0.125
_DEVIATION_GAIN = 0.25
_DEVIATIONS = 2.0
_MAX_MARGIN = 0.5  # of the budget a request arrived with


class Turnaround:
    """Seconds from dispatch to answer, by bucket edge: mean and mean deviation, both EWMAs.

    Queueing is not part of it; transport, waiting at the replica and service are. Unmeasured
    buckets are assumed to take `initial_s`.
    """

    def __init__(self) -> None:
        self._initial_s = 0.0
        self._seen: dict[int, tuple[float, float] | None] = {}

    def keep(self, edges: tuple[int, ...], initial_s: float) -> None:
        """These are the buckets now. What was known of others is dropped, once it has lent a new
        bucket the first guess: what the next longer one took."""
        self._initial_s = initial_s
        known = self._seen
        self._seen = {edge: known.get(edge) or _next_longer(known, edge) for edge in edges}

    def observe(self, edge: int, seconds: float) -> None:
        if edge not in self._seen:
            return
        known = self._seen[edge]
        if known is None:
            self._seen[edge] = (seconds, seconds / 4.0)
            return
        mean, deviation = known
        off = seconds - mean
        deviation += _DEVIATION_GAIN * (abs(off) - deviation)
        self._seen[edge] = (mean + _MEAN_GAIN * off, deviation)

    def margin_s(self, edge: int) -> float:
        known = self._seen.get(edge)
        return self._initial_s if known is None else known[0] + _DEVIATIONS * known[1]

    def typical_s(self) -> tuple[float, float]:
        """Mean and margin over the buckets that were measured; of none, what is assumed."""
        seen = [known for known in self._seen.values() if known is not None]
        if not seen:
            return self._initial_s, self._initial_s
        mean_s = sum([mean for mean, _ in seen]) / len(seen)
        return mean_s, mean_s + _DEVIATIONS * sum([off for _, off in seen]) / len(seen)

    def latest_start(self, edge: int, now: float, deadline: float) -> float:
        margin_s, most_s = self.margin_s(edge), _MAX_MARGIN * (deadline - now)
        return deadline - (margin_s if margin_s < most_s else max(0.0, most_s))


def _next_longer(
    known: dict[int, tuple[float, float] | None], edge: int
) -> tuple[float, float] | None:
    longer = [other for other, seen in known.items() if other >= edge and seen is not None]
    return known[min(longer)] if longer else None
