"""The state of a whole server, from what its gateways and replicas have published.

Rows, leases and drift are sums over gateways, because each gateway has queues of its own. Replicas
are counted as the gateway that reaches most of them sees them. Pure: takes the registry's status,
returns the snapshot that `status` shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NotRequired, TypedDict

from deployments.contract.app_names import is_model_app, is_model_deployment, model_name
from deployments.contract.registry import (
    ModelOutline,
    RegistryStatus,
    ReplicaProgress,
)
from deployments.contract.rollout.account import RolloutAccount
from deployments.contract.rollout.terms import is_canary
from deployments.control.registry.registry import failures


class ModelStatus(TypedDict):
    """One model. Numbers of rows and leases are sums over all gateways."""

    name: str
    version: str  # "": not ready
    runtime: str
    state: str  # declared | starting | ready | asleep (a request wakes it) | failed
    reason: str  # why it, or one of its replicas, cannot start, or what a start is doing
    optional: bool  # readiness does not wait for it
    replicas_ready: int
    replicas: int  # that Serve is to run
    waiting_rows: int
    late_rows: int
    oldest_wait_s: float  # the longest at any gateway
    leases: int
    backlog_s: float  # the largest at any gateway
    drift: int
    rows_by_bucket: dict[str, int]  # waiting rows by their bucket's edge, tokens
    rows_by_tenant: dict[str, int]
    tokens_per_s: float
    # Of a model that generates, by replica: the sequences that run and that wait in its engine, and
    # the share of its cache in use.
    engines: dict[str, list[float]]
    # By replica on a GPU, once it has answered: as in `DeviceMemory`.
    device_memory_bytes: dict[str, dict[str, int | None]]
    ejected: list[str]  # replicas that a gateway leaves out as outliers
    ended: dict[str, tuple[float, str]]  # replicas that lately ended: seconds ago, and why
    profile: str  # where the model's costs come from
    start_s: dict[str, float]  # seconds of each phase of its latest start


class StatusSnapshot(TypedDict):
    """The whole server. Canaries are not among `models`."""

    url: str
    pid: NotRequired[int]  # of the host process, if there is one
    uptime_s: NotRequired[float]  # of the host process
    gateways: int
    silent: NotRequired[dict[str, float]]  # those that were last seen so many seconds ago
    models: Sequence[ModelStatus]
    frozen: bool  # at every gateway, all that learns is frozen
    problem: str | None  # for an operator, such as a tenants file that is not in force
    scaling: NotRequired[dict[str, Any] | None]  # `Decider.status`; None: it does not answer
    rollouts: NotRequired[Sequence[RolloutAccount]]  # those that the registry knows


def server_status(known: RegistryStatus, targets: Mapping[str, int]) -> dict[str, Any]:
    """The `models`, `gateways`, `frozen` and `problem` of a `StatusSnapshot`. `targets`: by model,
    how many replicas Serve is to run."""
    gateways = list(known.gateways.values())
    problems = [g.problem for g in gateways if g.problem]
    names = sorted(name for name in known.view.declared if not is_canary(name))
    return {
        "models": [_model(name, targets.get(name, 0), known) for name in names],
        "gateways": len(gateways),
        "frozen": bool(gateways) and all(g.frozen for g in gateways),
        "problem": problems[0] if problems else None,
    }


def replica_targets(applications: Mapping[str, Any]) -> dict[str, int]:
    """How many replicas Serve is to run of each model, from its details by application
    (`ServeInstanceDetails`)."""
    return {
        model_name(app): sum(
            deployment["target_num_replicas"]
            for name, deployment in details["deployments"].items()
            if is_model_deployment(name)
        )
        for app, details in applications.items()
        if is_model_app(app)
    }


def _model(name: str, target: int, known: RegistryStatus) -> ModelStatus:
    seen = [g.models[name] for g in known.gateways.values() if name in g.models]
    live = known.view.models.get(name)
    ready = max((s.replicas for s in seen), default=0)
    outline = known.outlines.get(name, ModelOutline())
    told = [p for p in known.progress if p.model == name]
    starts = [p.spent for p in told if p.phase == "ready"]
    state = _state(
        live is not None and ready > 0,
        any(s.asleep for s in seen),
        {p.phase for p in told},
    )
    return ModelStatus(
        name=name,
        version=live.version if live else "",
        runtime=outline.runtime,
        optional=outline.optional,
        state=state,
        reason=_reason(state, told),
        replicas_ready=ready,
        replicas=target,
        waiting_rows=sum(s.waiting_rows for s in seen),
        late_rows=sum(s.late_rows for s in seen),
        oldest_wait_s=max((s.oldest_wait_s for s in seen), default=0.0),
        leases=sum(s.leases for s in seen),
        backlog_s=max((s.backlog_s for s in seen), default=0.0),
        drift=sum(s.drift for s in seen),
        rows_by_bucket=_summed((s.rows_by_bucket for s in seen), key=int),
        rows_by_tenant=_summed(s.rows_by_tenant for s in seen),
        tokens_per_s=sum(s.tokens_per_s for s in seen),
        # All gateways report the same of a replica, apart from the moment of the report.
        engines={replica: load for s in seen for replica, load in s.engines.items()},
        device_memory_bytes={
            uid: asdict(said) for s in seen for uid, said in s.device_memory.items()
        },
        ejected=sorted({replica for s in seen for replica in s.ejected}),
        ended={replica: said for s in seen for replica, said in s.ended.items()},
        profile=live.profile_from if live else "",
        start_s=dict(starts[-1]) if starts else {},
    )


def _summed(each: Iterable[dict[str, int]], key: Any = None) -> dict[str, int]:
    total: Counter[str] = Counter()
    for rows in each:
        total.update(rows)
    return {name: total[name] for name in sorted(total, key=key)}


def _reason(state: str, told: Sequence[ReplicaProgress]) -> str:
    for reason in failures(told).values():
        return reason
    if state == "starting":
        last = told[-1]
        if last.phase == "ready":  # which gateways say a second later
            return "its replica is ready; no gateway has seen it yet"
        share = f" {last.fraction:.0%}" if last.fraction else ""
        return f"{last.phase}{share}" + (f": {last.detail}" if last.detail else "")
    return ""


def _state(ready: bool, asleep: bool, phases: set[str]) -> str:
    if ready or asleep:
        return "ready" if ready else "asleep"
    if "failed" in phases:
        return "failed"
    return "starting" if phases else "declared"
