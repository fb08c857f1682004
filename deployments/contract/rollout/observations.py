"""What gateways have seen of two versions side by side, in one step of a rollout.

Each gateway counts for itself and says the whole of its counts again and again; the registry adds
up what all have said last. Plain data and sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class VersionObservations:
    """`failed`: requests that it could not answer, and the other version, or nobody, had to.
    latencies: of those answered, by the length of the longest row (its power of two), requests in
    each step of `latencies`; of a generation, until its first token. token_s: of generations, the
    same of the mean time from one output token to the next, whatever the length."""

    answered: int = 0
    failed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    latencies: dict[int, Counter[int]] = field(default_factory=dict)
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
    """Of one step (`rollout`, `step`) at one gateway, or summed. `compared`: copied requests that
    both versions answered, `agreed`: of those, enough of whose rows agree. `reached`: replicas of
    the canary that a gateway reaches."""

    rollout: int
    step: int
    live: VersionObservations = field(default_factory=VersionObservations)
    canary: VersionObservations = field(default_factory=VersionObservations)
    copies: VersionObservations = field(default_factory=VersionObservations)
    compared: int = 0
    agreed: int = 0
    reached: int = 0

    def add(self, other: Observations) -> None:
        for name in ("live", "canary", "copies"):
            getattr(self, name).add(getattr(other, name))
        self.compared += other.compared
        self.agreed += other.agreed
        self.reached += other.reached


def summed(rollout: int, step: int, said: Iterable[Observations]) -> Observations:
    """Of those that are about this step of this rollout."""
    total = Observations(rollout, step)
    for each in said:
        if (each.rollout, each.step) == (rollout, step):
            total.add(each)
    return total


def length_bin(length: int) -> int:
    """The power of two that holds a row of this length."""
    return 1 << max(0, length - 1).bit_length()


def commonest(reasons: Mapping[str, int]) -> str:
    return max(reasons, key=lambda each: (reasons[each], each)) if reasons else ""
