"""The policies that may be chosen by name. A new one is a file beside the others and a line here.

Every one of a kind passes the same suite (`tests/routers/policies`). The first of a kind is what is
used unless the settings name another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from routers.api.errors import BadSettings
from routers.api.policies import Order
from routers.api.settings import DispatcherSettings, PolicyNames
from routers.policies.batching.by_arrival import BatchesByArrival
from routers.policies.batching.by_bucket import BatchesByBucket
from routers.policies.batching.ragged import RaggedBatching
from routers.policies.batching.types import Batching
from routers.policies.order.by_head import EarliestDeadline, FirstCome
from routers.policies.order.deficit_round_robin import DeficitRoundRobin
from routers.policies.order.fair_queueing import FairQueueing
from routers.policies.order.token_counters import TokenCounters
from routers.policies.placement.finish_first import FinishFirst
from routers.policies.placement.least_loaded import LeastLoaded
from routers.policies.placement.prequal import Prequal
from routers.policies.placement.round_robin import RoundRobin
from routers.state.ready_replicas import Placement

ORDERS: Mapping[str, Callable[[DispatcherSettings], Order]] = {
    "sfq": lambda _: FairQueueing(),
    "vtc": TokenCounters.of,
    "drr": lambda _: DeficitRoundRobin(),
    "edf": lambda _: EarliestDeadline(),
    "fifo": lambda _: FirstCome(),
}
BATCHINGS: Mapping[str, Callable[[], Batching]] = {
    "ragged": RaggedBatching,
    "bucket": BatchesByBucket,
    "arrival": BatchesByArrival,
}
PLACEMENTS: Mapping[str, Callable[[], Placement]] = {
    "finish_first": FinishFirst,
    "least_loaded": LeastLoaded,
    "prequal": Prequal,
    "round_robin": RoundRobin,
}
KINDS: Mapping[str, Mapping[str, object]] = {
    "order": ORDERS,
    "batching": BATCHINGS,
    "placement": PLACEMENTS,
}


def check_names(names: PolicyNames) -> None:
    """Raises `BadSettings` for a name that is not there."""
    for kind, known in KINDS.items():
        name = getattr(names, kind)
        if name not in known:
            raise BadSettings(f"policies.{kind} must be one of {', '.join(known)}, got {name!r}")
