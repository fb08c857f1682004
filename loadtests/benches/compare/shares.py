"""The share of the device that each length had in overload, beside its fair one.

Served cost by length class beside what it should have had: the lesser of what it asked for and its
water-filled share of what was served. Cost is the device's seconds for a row as one of a full batch
of its length, and only rows in time count as served: winning by starving the long ones would show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadtests.benches.compare.loads import LoadTrial
from loadtests.benches.compare.works import cost_ms
from loadtests.traffic.workload import RAGGED_MIX

COSTS_MS = {str(b.high): cost_ms((b.low + b.high) // 2) for b in RAGGED_MIX}
NAMES = {str(b.high): f"{b.low}-{b.high}" for b in RAGGED_MIX}


@dataclass(frozen=True, slots=True)
class Kept:
    """Of one class: shares of the device (asked for, served, fair), and rows in time, all 0..1 and
    above where more was asked for than there is."""

    name: str
    asked: float
    served: float
    fair: float
    rows: float

    @property
    def part(self) -> float:
        """Of its fair share, served."""
        return self.served / self.fair if self.fair else 1.0


def kept_shares(trial: LoadTrial) -> list[Kept]:
    """Shares of the whole device's time."""
    asked = {edge: n * COSTS_MS[edge] / 1e3 / trial.seconds for edge, (n, _) in counts(trial)}
    served = {edge: n * COSTS_MS[edge] / 1e3 / trial.seconds for edge, (_, n) in counts(trial)}
    fair = water_filled(asked, sum(served.values()))
    return [
        Kept(NAMES[edge], asked[edge], served[edge], fair[edge], kept / offered if offered else 1.0)
        for edge, (offered, kept) in counts(trial)
    ]


def counts(trial: LoadTrial) -> list[tuple[str, tuple[int, int]]]:
    return list(trial.by_length.items())


def water_filled(wanted: Mapping[str, float], capacity: float) -> dict[str, float]:
    """The same for each, and what one does not want for the others."""
    given: dict[str, float] = {}
    left = capacity
    for name in sorted(wanted, key=lambda each: wanted[each]):
        given[name] = min(wanted[name], left / (len(wanted) - len(given)))
        left -= given[name]
    return given
