"""How hard is a model pressed: is it at ease, busy, or refusing some or most of its requests?

Level 0: at ease. 1: its replicas are busier than the share above which nothing is copied. 2: it
refuses more than one request in a hundred because of load. 3: it refuses at least half of them, so
it is asked for twice what it can do, or more. Requests that were let in and then evicted because of
load count as refused. A refusal for a reason of the request's own (too long, over its tenant's
bound) does not count, nor does a lost replica. Averaged over about `_WINDOW_S`, so that one full
batch of refusals makes no overload. Work: O(1) a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import exp
from typing import Final

_WINDOW_S: Final = 5.0
_SOME, _MOST = 0.01, 0.5  # of requests refused
_UNSEEN: Final = 1.0  # requests taken to have been let in, so that one refusal is no overload


class Pressure(IntEnum):
    """How hard a model is pressed at one gateway."""

    AT_EASE = 0
    BUSY = 1
    REFUSES_SOME = 2
    REFUSES_MOST = 3


@dataclass(slots=True)
class RefusedShare:
    """The share of requests that were lately refused because of load. It falls while none comes."""

    _came: float = 0.0  # requests of the window
    _refused: float = 0.0
    _seen_came: int = 0  # the counters, when last looked at
    _seen_refused: int = 0
    _at: float = 0.0

    def advance(self, came: int, refused: int, now: float) -> None:
        """So many requests have come and been refused by now, ever."""
        if came == self._seen_came and refused == self._seen_refused:
            return
        kept = self._kept(now)
        self._came = self._came * kept + (came - self._seen_came)
        self._refused = self._refused * kept + (refused - self._seen_refused)
        self._seen_came, self._seen_refused, self._at = came, refused, max(now, self._at)

    def read(self, now: float) -> float:
        """The share at `now`, 0..1."""
        return min(1.0, self._refused * self._kept(now) / (self._came + _UNSEEN))

    def _kept(self, now: float) -> float:
        return exp((self._at - now) / _WINDOW_S) if now > self._at else 1.0


def pressure(refused: float, utilisation: float, busy_above: float) -> Pressure:
    """The level. `refused`: share of requests refused; `busy_above`: the share of busy replicas
    above which nothing is copied."""
    if refused >= _MOST:
        return Pressure.REFUSES_MOST
    if refused > _SOME:
        return Pressure.REFUSES_SOME
    return Pressure.BUSY if utilisation > busy_above else Pressure.AT_EASE
