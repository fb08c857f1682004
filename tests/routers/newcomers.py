"""Requests as controllers of admission see them, and what the core does when it asks one."""

from __future__ import annotations

from dataclasses import replace

from routers.api.requests import FlowKey, Request
from routers.api.settings import AdmissionParameters, DispatcherSettings
from routers.policies.admission.types import Answer, Controller, Newcomer, OnArrival
from routers.state.flows import Flow
from routers.state.rows import TrackedRequest

SETTINGS = DispatcherSettings((64,))


def tuned(
    controller: Controller, admission: AdmissionParameters | None = None, *, frozen: bool = False
) -> None:
    given = AdmissionParameters() if admission is None else admission
    controller.tune(replace(SETTINGS, admission=given, frozen=frozen))


def came(
    flow: FlowKey,
    now: float = 0.0,
    *,
    weight: float = 1.0,
    inflight: int = 0,
    slack_s: float = 0.1,
    edge: int = 64,
    cost_s: float = 0.0,
    forecast_s: float | None = None,
) -> TrackedRequest:
    """A request of one row; `inflight`: of its flow, in the core."""
    priority, tenant = flow
    request = Request(1, (edge,), now, now + 9.0, now + 9.0, tenant, priority, weight=weight)
    its_flow = Flow(tenant, priority, weight)
    its_flow.live = inflight
    tracked = TrackedRequest(request, its_flow, now, now + slack_s, edge, cost_s)
    tracked.forecast_s = forecast_s
    return tracked


def found(
    tracked: TrackedRequest,
    now: float = 0.0,
    *,
    before_s: float = 0.0,
    urgent_s: float = 0.0,
    competing_weight: float = 0.0,
    capacity: float = 1.0,
) -> Newcomer:
    """What it finds in the queue."""
    slack_s = tracked.latest_start - now
    newcomer = Newcomer(tracked, tracked.flow, slack_s, capacity)
    newcomer.before_s, newcomer.urgent_s = before_s, urgent_s
    newcomer.competing_weight = competing_weight
    return newcomer


def ask(controller: OnArrival, newcomer: Newcomer, now: float) -> Answer:
    """Of a request that has come."""
    controller.came(newcomer, now)
    answer = controller.judge(newcomer, now)
    if answer.teaches:
        controller.told(newcomer, answer, now)
    return answer
