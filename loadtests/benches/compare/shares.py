"""Computes the share of the device that each length got in overload, and its fair share.

A length's fair share is the lesser of its demand and its max-min fair (water-filled) part of the
device seconds of all rows in time. A row counts for the seconds that it takes as part of a full
batch of its length. Only rows in time count as served, so that starving long rows shows.
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
    """The shares of one length class. All are parts of 1; `asked` may be above 1."""

    name: str
    asked: float  # of the device: demand
    served: float  # of the device: rows in time
    fair: float  # of the device
    rows: float  # of the class's rows, those in time

    @property
    def part(self) -> float:
        """The part of its fair share that the class got."""
        return self.served / self.fair if self.fair else 1.0


def kept_shares(trial: LoadTrial) -> list[Kept]:
    """Shares of the device's time by length class."""
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
    """The max-min fair division of `capacity`: equal parts, of which the others get what one does
    not want."""
    given: dict[str, float] = {}
    left = capacity
    for name in sorted(wanted, key=lambda each: wanted[each]):
        given[name] = min(wanted[name], left / (len(wanted) - len(given)))
        left -= given[name]
    return given
