"""What the registry and those who ask it tell each other: the view, outlines, progress.

Gateways route by a `View`, which they long-poll. Anchors say what is known of a model before it is
ready, replicas how far their start has come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from deployments.contract.description import ModelDescription
from deployments.contract.pool import PoolMember
from deployments.contract.rollout.route import RolloutRoute

ANSWER_S = 5.0
"""Seconds that a caller waits for the registry at most: it may hang without being dead."""
LEASE_S = 5.0
SNAPSHOT_KEEPS_S = 10.0  # a gateway's snapshot is dropped after that
RATES, CRASHES = "rates", "crashes"
EXCHANGED = {RATES: 3.0, CRASHES: SNAPSHOT_KEEPS_S}
"""The parts of a gateway's snapshot that other gateways get: its tenants' rates, and inputs that
end replicas. Each with the seconds for which it counts: a gateway says both once a second, and one
that died asks for no share of a rate, while the inputs that it lost replicas with are the same."""


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """What is known of a model before any of its replicas is ready."""

    fallback: str = ""  # the model that stands in until then; "": none
    runtime: str = ""  # as in its settings
    optional: bool = False  # readiness does not wait for it


STARTED = ("ready", "failed")  # the phases in which a start is over


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """How far one replica of a model has come with its start."""

    model: str
    replica: str
    phase: str  # staging … ready | failed
    fraction: float  # 0..1
    detail: str = ""
    passed: tuple[str, ...] = ()  # phases before this one, so that a look misses no short phase
    # Seconds of each phase in `passed`, in that order. The first phase is the process, from its
    # beginning until the replica's own code runs.
    spent: tuple[tuple[str, float], ...] = ()
    digest: str = ""  # of the settings that it was started with


@dataclass(frozen=True, slots=True)
class View:
    """What gateways route by. Everything in a view that is not `complete` is true, but models may
    be missing from it."""

    revision: int
    models: dict[str, ModelDescription]  # live versions; canaries under names of their own
    declared: frozenset[str]  # includes models that are not ready
    draining: bool
    complete: bool = True
    fallbacks: dict[str, str] = field(default_factory=dict)  # by model, see `ModelOutline`
    pool: dict[str, tuple[PoolMember, ...]] = field(default_factory=dict)  # by model
    optional: frozenset[str] = frozenset()  # models that readiness does not wait for
    rollouts: dict[str, RolloutRoute] = field(default_factory=dict)  # what goes to canaries
    controller_ends: int = 0  # how often this registry has killed Serve's controller
    failures: dict[str, str] = field(default_factory=dict)  # why a model's latest start failed
