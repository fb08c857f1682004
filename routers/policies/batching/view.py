"""What a batching policy is shown of the queue; to be read and not changed."""

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
    """The queue, and what plans are made from."""

    waiting: RequestQueue
    order: Order
    gaps: Mapping[int, Gaps]  # between arrivals, by edge
    at_turn: tuple[AtTurn, ...]  # controllers that are asked about a request whose turn has come
    groups: ReplicaGroups
    settings: DispatcherSettings
