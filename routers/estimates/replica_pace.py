"""How much slower than its group's engines does each stream replica work?

Samples are first tokens and the tokens after them: seconds over what the group's lines predict, so
neither prompts nor how many run beside each other matter; waits that other prompts were read in say
nothing, and are left out by the caller. All streams of a replica feel one stall, so samples of one
window make one verdict: the quickest of them, since an engine that is slow is always slow, and one
that has something else to do is not. A sample that had begun before the last verdict is in none: a
stall is in two of them at most. The slowdown is the median of the last five verdicts, so one stall
does not change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

_WINDOW_S = 1.0
_VERDICTS = 5
_MOST = 64.0  # times as slow, or as quick, as a verdict may say


@dataclass(slots=True)
class _Pace:
    """`least`: of the samples since the last verdict, the one that was quickest beside what was
    predicted. `verdicts`: the last ones, as if those before the first had said that it is as quick
    as the others."""

    since: float = -inf
    least: float = inf
    verdicts: tuple[float, ...] = (1.0,) * _VERDICTS


class ReplicaPace:
    def __init__(self) -> None:
        self._paces: dict[str, _Pace] = {}

    def slowdown(self, replica_id: str) -> float:
        """1.0 until it was measured."""
        pace = self._paces.get(replica_id)
        return 1.0 if pace is None else sorted(pace.verdicts)[_VERDICTS // 2]

    def took(
        self, replica_id: str, began_at: float, now: float, predicted_s: float, *, alone: bool
    ) -> float | None:
        """It took from `began_at` until now. The verdict where there is one: of all samples since
        the last one the quickest, over what was predicted. `alone`: this sample makes one by
        itself."""
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
        """It is gone."""
        self._paces.pop(replica_id, None)
