"""What gateways have observed of two versions side by side in one step of a rollout.

Each gateway counts for itself and reports all its counts each time. The registry adds up the latest
report of each gateway. `LiveCosts`: what the live version's batches cost, which a new version is
held to. Plain data and sums.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from deployments.contract.codec import MessageCodec

Profile = tuple[tuple[int, int, float], ...]
Fit = tuple[float, float, float, float]
"""Seconds of a batch: constant, for each row, for each token, for each token times the width."""


@dataclass(frozen=True, slots=True)
class LiveCosts:
    """What batches of the live version take: `profile` as a replica measured them when it started,
    `fits` as each gateway predicts them by now."""

    profile: Profile
    fits: tuple[Fit, ...] = ()


LIVE_COSTS = MessageCodec[LiveCosts | None](LiveCosts | None)


@dataclass(frozen=True, slots=True)
class CostBounds:
    """What a new version that changes at once is held to."""

    slo_s: float
    max_ratio: float  # to the live version's time; 0: not compared


_STEP = 1.1  # ratio of a step's upper bound to the one before
_MIN_S = 1e-4  # upper bound of step 0

Histogram = Mapping[int, int]
"""Number of requests by step: step n holds latencies up to `_MIN_S * _STEP**n` seconds."""


def step_of(latency_s: float) -> int:
    """The step that holds this latency."""
    return max(0, math.ceil(math.log(max(latency_s, _MIN_S) / _MIN_S, _STEP)))


def seconds_of(step: int) -> float:
    """The step's upper bound."""
    return _MIN_S * float(_STEP**step)


@dataclass(slots=True)
class VersionObservations:
    """One version."""

    answered: int = 0
    failed: int = 0  # requests that it could not answer; the other version had to, or none did
    reasons: Counter[str] = field(default_factory=Counter)  # of the failures
    # Latencies of answered requests: by the length of the longest row (rounded up to a power of
    # two), the number of requests in each step of `latencies`. Of a generation, the latency is
    # that until its first token.
    latencies: dict[int, Counter[int]] = field(default_factory=dict)
    # The same of generations' mean time from one output token to the next, whatever the length.
    token_s: Counter[int] = field(default_factory=Counter)

    @property
    def requests(self) -> int:
        return self.answered + self.failed

    def add(self, other: VersionObservations) -> None:
        self.answered += other.answered
        self.failed += other.failed
        self.reasons += other.reasons
        self.token_s += other.token_s
        for length, histogram in other.latencies.items():
            self.latencies[length] = self.latencies.get(length, Counter()) + histogram


@dataclass(slots=True)
class Observations:
    """One step (`rollout`, `step`) at one gateway, or summed over gateways."""

    rollout: int
    step: int
    live: VersionObservations = field(default_factory=VersionObservations)
    canary: VersionObservations = field(default_factory=VersionObservations)
    copies: VersionObservations = field(default_factory=VersionObservations)  # run by the canary
    compared: int = 0  # copied requests that both versions answered
    agreed: int = 0  # of those, the requests of which enough rows agree
    reached: int = 0  # replicas of the canary that a gateway reaches

    def add(self, other: Observations) -> None:
        for name in ("live", "canary", "copies"):
            getattr(self, name).add(getattr(other, name))
        self.compared += other.compared
        self.agreed += other.agreed
        self.reached += other.reached


def summed(rollout: int, step: int, said: Iterable[Observations]) -> Observations:
    """The sum of those reports that are about this step of this rollout."""
    total = Observations(rollout, step)
    for each in said:
        if (each.rollout, each.step) == (rollout, step):
            total.add(each)
    return total


def length_bin(length: int) -> int:
    """The length rounded up to a power of two."""
    return 1 << max(0, length - 1).bit_length()


def commonest(reasons: Mapping[str, int]) -> str:
    return max(reasons, key=lambda each: (reasons[each], each)) if reasons else ""
