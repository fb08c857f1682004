"""What a batching policy is shown of the queue, to be looked at and not changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from routers.api.policies import Order
from routers.api.settings import DispatcherSettings
from routers.estimates.batch_size import Gaps
from routers.estimates.groups import ReplicaGroups
from routers.policies.admission.types import AtTurn
from routers.state.request_queue import RequestQueue


@dataclass(slots=True)
class QueueView:
    """`gaps`: between arrivals, by edge. `at_turn`: controllers that are asked of a request whose
    turn has come."""

    waiting: RequestQueue
    order: Order
    gaps: Mapping[int, Gaps]
    at_turn: tuple[AtTurn, ...]
    groups: ReplicaGroups
    settings: DispatcherSettings
