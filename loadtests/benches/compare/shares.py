"""Computes the share of the device that each length got in overload, and its fair share.

A length's fair share is the lesser of its demand and its max-min fair (water-filled) part of the
device seconds of all rows in time. A row counts for the seconds that it takes as part of a full
batch of its length. Only rows in time count as served, so that starving long rows shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadtests.peers.device import Speed
from loadtests.results.fairness import Entitlement, shares_of
from loadtests.traffic.workload import RAGGED_MIX

MAX_ROWS = 32
NAMES = {str(b.high): f"{b.low}-{b.high}" for b in RAGGED_MIX}  # by a class's longest length


def cost_ms(length: int) -> float:
    """The device's milliseconds for a row as part of a full batch of its length."""
    return Speed().seconds(MAX_ROWS, length) / MAX_ROWS * 1e3


COSTS_MS = {str(b.high): cost_ms((b.low + b.high) // 2) for b in RAGGED_MIX}


@dataclass(frozen=True, slots=True)
class Kept:
    """The shares of one length class. All are parts of 1; `asked` may be above 1."""

    name: str
    asked: float  # of the device: demand
    served: float  # of the device: rows in time
    fair: float  # of the device

    @property
    def part(self) -> float:
        """The part of its fair share that the class got."""
        return self.served / self.fair if self.fair else 1.0

    def cells(self) -> tuple[str, ...]:
        of_device = (f"{share:.1%}" for share in (self.asked, self.served, self.fair))
        return (self.name, *of_device, f"{self.part:.0%}")


def kept_of(asked: Mapping[str, float], in_time: Mapping[str, float]) -> list[Kept]:
    """By class: its demand in device seconds a second, and the share of its rows in time."""
    served = {edge: asked[edge] * in_time[edge] for edge in asked}
    fair = water_filled(asked, sum(served.values()))
    return [Kept(NAMES[edge], asked[edge], served[edge], fair[edge]) for edge in asked]


def water_filled(wanted: Mapping[str, float], capacity: float) -> dict[str, float]:
    """The max-min fair division of `capacity`: equal parts, of which the others get what one does
    not want."""
    shares = shares_of(capacity, wanted, {name: Entitlement() for name in wanted})
    return {name: min(wanted[name], shares[name]) for name in wanted}
