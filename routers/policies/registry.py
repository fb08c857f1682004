"""The policies that settings may name. A new one is a class beside the others and a line here.

All policies of a kind pass the same suite (`tests/routers/policies`). `PolicyNames` says which are
used unless the settings name others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from routers.api.errors import BadSettings
from routers.api.policies import Order
from routers.api.settings import AdmissionParameters, DispatcherSettings, HedgeParameters
from routers.policies.admission.best_effort_capacity import BestEffortCapacity
from routers.policies.admission.codel import Codel
from routers.policies.admission.feasibility import Feasibility
from routers.policies.admission.learnt_limit import LearntLimit
from routers.policies.admission.types import AtTurn, Controller, OnArrival, OnceLate
from routers.policies.batching.ragged import RaggedBatching
from routers.policies.batching.simple import BatchesByArrival, BatchesByBucket, FullBatches
from routers.policies.batching.types import Batching
from routers.policies.edges import EdgePolicy, LeastPadding, LeastSeconds, Quantiles
from routers.policies.hedging import HedgeDelay, MultipleDelay, QuantileDelay
from routers.policies.order import (
    DeficitRoundRobin,
    EarliestDeadline,
    FairQueueing,
    FirstCome,
    TokenCounters,
)
from routers.policies.placement import FinishFirst, LeastLoaded, Placement, Prequal, RoundRobin
from routers.policies.preemption import LeastUrgent, LeastWorkLost, Never, Preemption

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
    "full": FullBatches,
}
PLACEMENTS: Mapping[str, Callable[[], Placement]] = {
    "finish_first": FinishFirst,
    "least_loaded": LeastLoaded,
    "prequal": Prequal,
    "round_robin": RoundRobin,
}
ADMISSIONS: Mapping[str, Callable[[], Controller]] = {
    "feasibility": Feasibility,
    "best_effort_capacity": BestEffortCapacity,
    "codel": Codel,
    "limit": LearntLimit,
}
HEDGINGS: Mapping[str, Callable[[HedgeParameters], HedgeDelay]] = {
    "quantile": QuantileDelay.of,
    "multiple": MultipleDelay.of,
}
EDGES: Mapping[str, Callable[[], EdgePolicy]] = {
    "seconds": LeastSeconds,
    "padding": LeastPadding,
    "quantiles": Quantiles,
}
PREEMPTIONS: Mapping[str, Callable[[], Preemption]] = {
    "least_urgent": LeastUrgent,
    "least_work_lost": LeastWorkLost,
    "none": Never,
}
KINDS: Mapping[str, Mapping[str, object]] = {
    "order": ORDERS,
    "batching": BATCHINGS,
    "placement": PLACEMENTS,
    "admission": ADMISSIONS,
    "hedging": HEDGINGS,
    "edges": EDGES,
    "preemption": PREEMPTIONS,
}
SEVERAL: Final = frozenset({"admission"})
"""Kinds of which settings name any number of policies; those answer in the order named."""


_QUESTIONS: Final[tuple[tuple[type, tuple[str, ...]], ...]] = (
    (Order, ("tag", "charged", "refunded", "entered", "next_virtual", "is_far_ahead")),
    (Batching, ("choose",)),
    (Placement, ("place", "score")),
    (OnArrival, ("judge",)),
    (OnceLate, ("refuses",)),
    (AtTurn, ("look",)),
    (HedgeDelay, ("delay_s",)),
    (Preemption, ("gives_back", "stops")),
)
"""What a class of each kind has to answer itself. Its base class has these methods too, but they
answer nothing, and `abc` is not used here (`policies/admission/types.py`)."""


def fault_of(kind: str, name: str) -> str:
    """What is wrong with a name that settings have for this kind of policy; "": nothing."""
    known = KINDS[kind]
    if name not in known:
        return f"must be one of {', '.join(known)}, got {name!r}"
    policy = known[name]
    if isinstance(policy, type):
        for base, methods in _QUESTIONS:
            for method in methods if issubclass(policy, base) else ():
                if getattr(policy, method) is getattr(base, method):
                    return f"{name!r} cannot be used: {policy.__name__} lacks the method {method}"
    return ""


def check_names(settings: DispatcherSettings) -> None:
    """Raises `BadSettings` if a name is not known or stands twice, if its class is not whole, or if
    `admission.modes` names a controller whose mode is set elsewhere."""
    for kind in KINDS:
        value = getattr(settings.policies, kind)
        names = value if kind in SEVERAL else (value,)
        for name in names:
            if fault := fault_of(kind, name):
                raise BadSettings(f"policies.{kind} {fault}")
        if len(set(names)) < len(names):
            raise BadSettings(f"policies.{kind} names one twice: {', '.join(names)}")
    for name, _ in settings.admission.modes:
        if name not in modeless():
            raise BadSettings(f"admission.modes: {name!r} has none to be set there")


def modeless() -> tuple[str, ...]:
    """Controllers of admission without parameters of their own, whose modes stand in
    `admission.modes`."""
    given = AdmissionParameters()
    return tuple(name for name, make in ADMISSIONS.items() if make().mode(given) is None)
