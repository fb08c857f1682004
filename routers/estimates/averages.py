"""Averages over continuous time that need no timer: rates, how busy replicas are, who uses them.

`DecayingRate` averages amounts that come in lumps (seconds of service at the end of a batch),
`TimeAverage` a value that holds from one call to the next, `Utilisation` the share of replicas that
hold work. All forget exponentially and cost O(1) a sample. What counts is when samples come, not
how many. A window should span several lumps: with five or more in a window, the ripple is at most a
tenth of the average.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, inf
from typing import Final

_WINDOW_S: Final = 1.0


class DecayingRate:
    """Amounts a second. It decays towards 0 while nothing is added."""

    window_s: float
    value: float
    at: float

    def __init__(self, window_s: float) -> None:
        self.window_s, self.value, self.at = window_s, 0.0, 0.0

    def add(self, amount: float, now: float) -> None:
        """So much came at `now`."""
        if now > self.at:
            self.value *= exp((self.at - now) / self.window_s)
            self.at = now
        self.value += amount / self.window_s

    def read(self, now: float) -> float:
        """The rate at `now`."""
        return self.value * exp((self.at - now) / self.window_s) if now > self.at else self.value


class TimeAverage:
    """Time average of the values told; the first value is taken over at once."""

    window_s: float
    value: float
    held: float  # the value told last
    at: float  # -inf: nothing was told

    def __init__(self, window_s: float) -> None:
        self.window_s, self.value, self.held, self.at = window_s, 0.0, 0.0, -inf

    def report(self, held: float, now: float) -> float:
        """The average up to `now`; from here on the value is `held`."""
        if self.at == -inf:
            self.value = held
        elif now > self.at:
            self.value += (self.held - self.value) * (1.0 - exp((self.at - now) / self.window_s))
        self.held, self.at = held, now
        return self.value


class Utilisation:
    """How busy the replicas are, averaged over about a second: the share of them that hold work of
    this gateway (a stream replica counts by how full it is), plus the seconds that they are
    reported to have served for other gateways. Work of this gateway that waits at a replica behind
    another gateway's counts twice, so with several gateways the figure errs on the busy side.

    `advance` moves time on, and must be called before the share changes.
    """

    def __init__(self) -> None:
        self._own = 0.0
        self._foreign = 0.0
        self._at = -inf

    @property
    def share(self) -> float:
        """0..1."""
        return min(1.0, self._own + self._foreign)

    def advance(self, busy: float, now: float) -> None:
        """`busy` has been the share of replicas that hold work since the last call."""
        if now > self._at > -inf:
            kept = exp((self._at - now) / _WINDOW_S)
            self._own = busy + kept * (self._own - busy)
            self._foreign *= kept
        self._at = now

    def read(self, busy: float, now: float) -> float:
        """The share at `now`, if `busy` has been the share of replicas that hold work since the
        last call of `advance`."""
        if self._at == -inf or now <= self._at:
            return self.share
        kept = exp((self._at - now) / _WINDOW_S)
        return min(1.0, busy + kept * (self._own - busy) + kept * self._foreign)

    def served_elsewhere(self, served_s: float, replicas: int) -> None:
        """One of so many replicas has served other gateways for so long."""
        self._foreign += served_s / (_WINDOW_S * max(1, replicas))


_PEERS_WINDOW_S: Final = 5.0
_SHORT_S: Final = 1e-6  # a report that covers less counts as one of a moment


@dataclass(slots=True)
class _Told:
    at: float
    rate: float = 0.0


class PeerLoad:
    """What other gateways take of one model's replicas.

    The answers of a replica say what it has served for other gateways since its last answer.
    Averaged for each replica over about `_PEERS_WINDOW_S`. Unit: reference seconds a second, so a
    replica that works for others alone counts as its group's speed. A replica's first report is
    ignored: nobody knows what time it covers. While a replica is not heard of, its last average
    stands.
    """

    def __init__(self) -> None:
        self.rate = 0.0  # of all replicas, reference seconds a second
        self._told: dict[str, _Told] = {}

    def report(self, replica_id: str, work_s: float, now: float, *, most: float = inf) -> None:
        """Since its last report the replica has served so much for others, of `most` a second that
        it can do: a report may cover work that was charged when it began."""
        told = self._told.get(replica_id)
        if told is None:
            self._told[replica_id] = _Told(now)
            return
        span_s, told.at = now - told.at, now
        if not (work_s or told.rate):
            return  # always so where there is one gateway
        new = -expm1(-span_s / _PEERS_WINDOW_S)  # the weight of this report
        gain = new / span_s if span_s > _SHORT_S else 1.0 / _PEERS_WINDOW_S
        change = min(gain * work_s - new * told.rate, most - told.rate)
        told.rate += change
        self.rate = max(0.0, self.rate + change)

    def forget(self, replica_id: str) -> None:
        """The replica is gone."""
        told = self._told.pop(replica_id, None)
        if told is not None:
            self.rate = max(0.0, self.rate - told.rate)
