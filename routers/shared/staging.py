"""Whose turn is it at a replica, and how often is a gateway told of the others?

For batches (`batch.staging`) and for requests that generate (`stream.staging`) alike: the lowest
rank is next; among those that the same flow leads at the same standing, the one whose gateway has
waited longest for a start. By rank alone a gateway whose account of the flow is ahead would never
be served. Times are seconds on the replica's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from routers.api.requests import FlowKey, FlowWork

# Shortest time between two reports of other gateways' queues to a gateway
REPORT_EVERY_S: Final = 0.05
DEMAND_HOLDS_S: Final = 1.0  # how long a gateway's report of its queue counts without a batch here
FORGET_S: Final = 60.0  # an unheard gateway is forgotten: one that was restarted has a new name


class Ranked(Protocol):
    """A batch or stream at a replica, as far as `whose_turn` looks at it."""

    @property
    def gateway(self) -> str: ...
    @property
    def rank(self) -> tuple[int, int, float]: ...
    @property
    def charges(self) -> tuple[FlowWork, ...]: ...


R = TypeVar("R", bound=Ranked)


def whose_turn(waiting: Sequence[R], turns: Mapping[str, int]) -> R:
    """The batch or stream to start next: of the lowest rank, or of those that the same flow leads
    at the same standing the one whose gateway has waited longest for a start. `turns`: by gateway,
    when its last one started, as a count of all starts."""
    lowest = min(waiting, key=rank_of)
    same = [each for each in waiting if _have_same_leader(each, lowest)]
    return min(same, key=lambda each: (turns[each.gateway], each.rank))


def rank_of(batch: Ranked) -> tuple[int, int, float]:
    return batch.rank


def _have_same_leader(batch: Ranked, other: Ranked) -> bool:
    """Whether the same flow leads both, at the same standing (late or not, priority)."""
    if batch is other:
        return True
    if not (batch.charges and other.charges):
        return False  # a copy carries no charges, so the flow that leads it is unknown
    return batch.rank[:2] == other.rank[:2] and batch.charges[0][:2] == other.charges[0][:2]


def summed(reports: Iterable[tuple[FlowWork, ...]]) -> tuple[FlowWork, ...]:
    """The reports' seconds, added up by flow."""
    total: dict[FlowKey, float] = {}
    for flows in reports:
        for priority, tenant, seconds in flows:
            flow = priority, tenant
            total[flow] = total.get(flow, 0.0) + seconds
    return tuple([(*flow, seconds) for flow, seconds in total.items()])
