"""How much slower than its group's engines does each stream replica work?

Samples are times to first tokens and times between tokens, measured over predicted by the group's
lines, so that neither prompts nor the number of sequences matter. The caller leaves out waits in
which other prompts were read. One stall affects all streams of a replica, so all samples of a
window make one verdict: the quickest of them, because a slow engine is always slow and an engine
that was busy otherwise is not. A sample that began before the last verdict is left out, so a stall
is in at most two verdicts. The slowdown is the median of the last five verdicts, so one stall does
not change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

_WINDOW_S: Final = 1.0
_VERDICTS: Final = 5
_MOST: Final = 64.0  # times slower, or faster, that a verdict may say at most


@dataclass(slots=True)
class _Pace:
    """One replica. `least` is the lowest ratio of the samples since the last verdict. `verdicts`
    are the last ones; before the first, the replica is taken to be as fast as its group."""

    since: float = -inf
    least: float = inf
    verdicts: tuple[float, ...] = (1.0,) * _VERDICTS


class ReplicaPace:
    """The slowdown of each stream replica to its group."""

    def __init__(self) -> None:
        self._paces: dict[str, _Pace] = {}

    def slowdown(self, replica_id: str) -> float:
        """Measured over predicted seconds; 1.0 until it was measured."""
        pace = self._paces.get(replica_id)
        return 1.0 if pace is None else sorted(pace.verdicts)[_VERDICTS // 2]

    def took(
        self, replica_id: str, began_at: float, now: float, predicted_s: float, *, alone: bool
    ) -> float | None:
        """Take in a sample that lasted from `began_at` to now. Returns a verdict if it completes
        one: the lowest ratio of measured to predicted seconds since the last verdict. `alone`: this
        sample makes a verdict by itself."""
        pace = self._paces.get(replica_id)
        if pace is None:
            pace = self._paces[replica_id] = _Pace()
        if began_at < pace.since or predicted_s <= 0.0:
            return None
        pace.least = min(pace.least, (now - began_at) / predicted_s)
        if not alone and now - pace.since < _WINDOW_S:
            return None
        ratio = min(_MOST, max(1.0 / _MOST, pace.least))
        self._paces[replica_id] = _Pace(now, verdicts=(*pace.verdicts[1:], ratio))
        return ratio

    def forget(self, replica_id: str) -> None:
        """The replica is gone."""
        self._paces.pop(replica_id, None)
