"""How many replicas does this much work need for the SLO?

The replicas of a model serve batches from one queue: M/G/c with batches as jobs, and the
Allen-Cunneen correction for arrivals that are not Poisson. The slack is the SLO less the 99th
percentile of a batch's time. The share of batches that wait longer than the slack is Erlang's C
times an exponential decay; it may be at most 1 - `percentile`. No replica is planned busier than
the knee. Several groups count as one queue with one server per replica and mean service times. The
variability of arrivals is measured (variance over mean of work in short bins). If it exceeds
Poisson's, C is raised to the power of its inverse.
Groups that alone take the longest rows are sized for those first, and all groups for all work last.
Checked against a simulation: never too few, at most two of 17 too many. Work: O(log n) steps of
O(n); results are reused for work that differs by less than half a percent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, log
from types import MappingProxyType
from typing import Any

from autoscaling.settings import GroupTerms, ModelTerms
from autoscaling.types import GroupReading

# The knee during a spike. The usual room is for demand that has not come yet; a spike has.
SPIKE_KNEE = 0.95
NOTHING: Mapping[int, float] = MappingProxyType({})
_STEP = log(1.005)
_KEPT = 64
_VARIABILITY = (0.05, 10.0)


@dataclass(frozen=True, slots=True)
class Service:
    """The speed of one replica of a group, rounded so that small changes have no effect. Fields as
    in `GroupReading`."""

    speed: float = 1.0
    batch_s: float = 0.05
    batch_p99_s: float = 0.1
    batch_scv: float = 0.25

    @classmethod
    def of(cls, reading: GroupReading | None) -> Service:
        if reading is None:
            return cls()
        return cls(
            _rounded(max(reading.speed, 1e-6)),
            _rounded(max(reading.batch_s, 1e-6)),
            _rounded(max(reading.batch_p99_s, reading.batch_s, 1e-6)),
            _rounded(max(reading.batch_scv, 0.0)),
        )


def _rounded(value: float) -> float:
    """The value rounded to about 2 %."""
    return exp(round(log(value) / 0.02) * 0.02) if value > 1e-9 else 0.0


@dataclass(frozen=True, slots=True)
class Option:
    """One group, as it can be sized now."""

    terms: GroupTerms
    service: Service
    maximum: int  # below the group's maximum if no more replicas find a node
    counts: int | None = None  # replicas that can work, if others wait for a node; None: all

    @property
    def price(self) -> float:
        return self.terms.needs.cost_per_hour / self.service.speed


class Sizing:
    """Sizes one model. dispersion_s: variance over mean of work in short bins; 0.0: unknown."""

    def __init__(self) -> None:
        self.dispersion_s = 0.0
        self._model: ModelTerms | None = None
        self._options: tuple[Option, ...] = ()
        self._kept: dict[tuple[Any, ...], dict[str, int]] = {}

    def adopt(self, model: ModelTerms, options: tuple[Option, ...]) -> None:
        """Set the terms and groups for the next sizes."""
        if options != self._options or model is not self._model:
            self._model, self._options = model, options
            self._kept.clear()

    def update_dispersion(self, dispersion_s: float) -> None:
        """Take a measured dispersion. It is smoothed: a minute's bins show it only to 25 %."""
        if dispersion_s > 0.0:
            gain = 0.1 if self.dispersion_s else 1.0
            self.dispersion_s += gain * (dispersion_s - self.dispersion_s)

    def size(
        self, work: float, in_spike: bool = False, longer: Mapping[int, float] = NOTHING
    ) -> dict[str, int]:
        """Replicas by group for so many reference seconds of work a second, with `survive` and
        `spare`; never below a group's minimum or above what finds a node. `longer`: the part of the
        work that is rows longer than a length, by that length. The caller must not change the
        result: it is reused."""
        if self._model is None:
            raise ValueError("the model's terms are not set; call `adopt` before `size`")
        grades = {0: _grade(work)} | {length: _grade(part) for length, part in longer.items()}
        dispersion_s = _rounded(self.dispersion_s)
        key = *grades.items(), dispersion_s, in_spike
        known = self._kept.get(key)
        if known is None:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            exact = {n: 0.0 if g is None else exp(g * _STEP) for n, g in grades.items()}
            knee = max(SPIKE_KNEE, self._model.policy.knee) if in_spike else self._model.policy.knee
            queue = _Queue(self._model, self._options, dispersion_s, knee)
            known = self._kept[key] = self._sized(exact, queue)
        return known

    def _sized(self, works: Mapping[int, float], queue: _Queue) -> dict[str, int]:
        """`works`: the work of rows longer than each length, 0 among them."""
        options = _cheapest_first(self._options)
        counts = {each.terms.name: min(each.terms.min, each.maximum) for each in self._options}
        for length, work in sorted(works.items(), reverse=True):
            able = [option for option in options if option.terms.takes_above(length)]
            for option in able:
                if queue.keeps(_only(counts, able), work):
                    break
                _fill(counts, option, able, queue, work)
        # A spare replica can stand in for any other: it takes the longest rows that come.
        spare = queue.model.policy.spare if works[0] > 0.0 else 0
        longest = max([length for length, work in works.items() if work > 0.0], default=0)
        for option in sorted(options, key=lambda each: not each.terms.takes_above(longest)):
            room = min(spare, max(0, option.maximum - counts[option.terms.name]))
            counts[option.terms.name] += room
            spare -= room
        return counts


def _grade(work: float) -> int | None:
    return ceil(log(work) / _STEP) if work > 1e-9 else None


def _only(counts: Mapping[str, int], able: Sequence[Option]) -> dict[str, int]:
    """The counts, with those of other groups 0."""
    names = {option.terms.name for option in able}
    return {name: count if name in names else 0 for name, count in counts.items()}


def _fill(
    counts: dict[str, int], option: Option, able: Sequence[Option], queue: _Queue, work: float
) -> None:
    """Add replicas of this group, one of those `able` to do the work, until it is served; all of
    them if that is not enough."""
    name, usable = option.terms.name, _only(counts, able)
    low, high = counts[name], option.maximum
    while low < high:
        middle = _middle(low, high)
        if queue.keeps({**usable, name: middle}, work):
            high = middle
        else:
            low = middle + 1
    counts[name] = max(counts[name], high)


def _middle(low: int, high: int) -> int:
    """The next number to try. Small numbers first: they are cheaper to check, and likelier."""
    return min(low + (high - low) // 2, 2 * low + 8)


def _cheapest_first(options: tuple[Option, ...]) -> list[Option]:
    """The groups by price; reserves last, equal prices in the settings' order."""
    return sorted(options, key=lambda each: (each.terms.reserve, each.price))


class _Queue:
    """The queueing model: one queue in front of all replicas of a model."""

    def __init__(
        self, model: ModelTerms, options: tuple[Option, ...], dispersion_s: float, knee: float
    ) -> None:
        self.model, self._dispersion_s, self._knee = model, dispersion_s, knee
        self._options = {each.terms.name: each for each in options}
        self._fastest = sorted(options, key=lambda each: -each.service.speed)

    def keeps(self, counts: Mapping[str, int], work: float) -> bool:
        """Whether these replicas keep the SLO at this work, even without the `survive` fastest."""
        if work <= 0.0:
            return True
        left = self._after_loss(counts)
        speed = sum(count * self._options[name].service.speed for name, count in left.items())
        if not speed or work > self._knee * speed:
            return False
        return self._late_share(left, speed, work / speed) <= 1.0 - self.model.percentile

    def _after_loss(self, counts: Mapping[str, int]) -> dict[str, int]:
        left = {
            name: count if (few := self._options[name].counts) is None else min(count, few)
            for name, count in counts.items()
        }
        lost = self.model.policy.survive
        for option in self._fastest:
            gone = min(lost, left[option.terms.name])
            left[option.terms.name] -= gone
            lost -= gone
        return left

    def _late_share(self, counts: Mapping[str, int], speed: float, busy: float) -> float:
        """Share of batches that wait longer than the slack: C·exp(-θ·slack)."""
        used = [(n, self._options[name].service) for name, n in counts.items() if n]
        servers = sum(n for n, _ in used)
        shares = [(n * service.speed / speed, service) for n, service in used]
        batch_s = sum(share * service.batch_s for share, service in shares)
        work = sum(share * service.batch_s * service.speed for share, service in shares)
        p99_s = sum(share * service.batch_p99_s for share, service in shares)
        scv = sum(share * service.batch_scv for share, service in shares)
        arrivals = min(_VARIABILITY[1], max(_VARIABILITY[0], self._dispersion_s / work))
        if not self._dispersion_s:
            arrivals = 1.0
        waits = math.pow(erlang_c(servers, busy * servers), min(1.0, 1.0 / arrivals))
        decay = 2.0 * servers * (1.0 - busy) / ((arrivals + scv) * batch_s)
        return waits * exp(-decay * max(0.0, self.model.slo_s - p99_s))


def erlang_c(servers: int, load: float) -> float:
    """Share of Poisson arrivals that find all servers busy (Erlang's C). `load`: in servers, below
    their number."""
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    busy = load / servers
    return blocked / (1.0 - busy * (1.0 - blocked))
