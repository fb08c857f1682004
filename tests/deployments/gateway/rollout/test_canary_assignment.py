"""What is counted of one request for which version, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from deployments.contract import errors
from deployments.contract.rollout.observations import Observations, VersionObservations, step_of
from deployments.gateway.queues.dispatcher_driver import QueueRequest, refusal
from deployments.gateway.rollout import canary_assignment as module
from deployments.gateway.rollout.canary_assignment import CanaryAssignment
from routers.api.requests import Reason

LOST = errors.ReplicaLost("it was lost", reason="lost")
BAD = errors.BadRequest("bad")
LEFT = errors.CallerLeft("left")
RATE = errors.OverOwnLimit("too fast", reason="token_rate")
BUSY = errors.Overloaded("too many bodies wait", reason="preprocess_full")
DEMAND = QueueRequest("t", 0, 1.0, 10.0)


def canary(replicas: int = 1, retry: bool = True) -> Any:
    scheduling = SimpleNamespace(retry=retry)
    return SimpleNamespace(replicas=replicas, description=SimpleNamespace(scheduling=scheduling))


def begun(on_canary: bool = True, **more: Any) -> tuple[CanaryAssignment, Observations]:
    seen = Observations(1, 0)
    pinned = more.pop("pinned", False)
    assignment = CanaryAssignment(seen, canary(**more) if on_canary else None, pinned=pinned)
    assignment.begins()
    return assignment, seen


def tally(seen: VersionObservations) -> tuple[int, int]:
    return seen.answered, seen.failed


@pytest.mark.parametrize(
    ("refused", "then", "live", "on_canary"),
    [
        (None, None, (0, 0), (1, 0)),
        (LOST, None, (1, 0), (0, 1)),
        (LOST, LOST, (0, 1), (0, 1)),
        (LOST, BAD, (0, 0), (0, 1)),
        (BAD, None, (1, 0), (0, 1)),
        (BAD, BAD, (0, 0), (0, 0)),
        (BAD, LOST, (0, 1), (0, 0)),
        (LOST, LEFT, (0, 0), (0, 1)),
        (LOST, RATE, (0, 0), (0, 1)),
        (refusal(Reason.TENANT_FULL, 1.0), None, (1, 0), (0, 0)),
        (refusal(Reason.QUEUE_FULL, 1.0), None, (1, 0), (0, 1)),
        (refusal(Reason.CLOSED, 1.0), None, (1, 0), (0, 1)),
        (refusal(Reason.LATE, 1.0), None, (1, 0), (0, 1)),
        (refusal(Reason.EXPIRED, 1.0), None, (1, 0), (0, 1)),
        (refusal(Reason.TOO_LONG, 1.0), None, (1, 0), (0, 1)),
        (errors.OutputNotFinite("NaN"), None, (1, 0), (0, 1)),
        (errors.RowQuarantined("again"), None, (1, 0), (0, 1)),
        (errors.OverOwnLimit("spent", reason="crash_budget"), None, (1, 0), (0, 1)),
    ],
)
def test_a_request_of_the_canary(refused: Any, then: Any, live: Any, on_canary: Any) -> None:
    """It refuses so, and the live version answers, or refuses then."""
    assignment, seen = begun()
    if refused is not None:
        assert assignment.goes_on(refused)
        assert not assignment.goes_on(refused)  # once
    if then is None:
        assignment.answered(5)
    else:
        assignment.failed(then)
    assert (tally(seen.live), tally(seen.canary)) == (live, on_canary)
    if refused is not None and on_canary[1]:
        assert seen.canary.reasons == {refused.reason: 1}


def test_each_version_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    assignment, seen = begun()
    now[0] = 107.0
    assert assignment.goes_on(LOST)
    assignment.begins()
    now[0] = 107.25
    assignment.answered(5)
    assignment.answered(8, 0.5)
    assignment.answered(9, 0.5)
    assignment.answered(9, ran=False)
    assert seen.live.latencies == {8: {step_of(0.25): 1, step_of(0.5): 1}, 16: {step_of(0.5): 1}}
    assert seen.live.answered == 4
    assert not seen.canary.latencies


@pytest.mark.parametrize(("left_s", "asked_s"), [(10.0, 9.0), (2.0, 1.0), (1.99, 1.99), (0.5, 0.5)])
def test_the_live_versions_slo_is_kept_back(left_s: float, asked_s: float) -> None:
    assignment, _ = begun()
    assert assignment.asks(replace(DEMAND, budget_s=left_s), 1.0).budget_s == asked_s
    assert assignment.goes_on(LOST)
    assert assignment.asks(replace(DEMAND, budget_s=left_s), 1.0).budget_s == left_s


def test_time_that_a_slow_body_took_is_not_left_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "monotonic", lambda: 100.0)
    assignment, _ = begun()
    asked = assignment.asks(replace(DEMAND, at=91.5), 1.0)  # 1.5 s of 10 are left
    assert asked.left_at(100.0)[1] == 1.5
    asked = assignment.asks(replace(DEMAND, at=92.0), 1.0)
    assert asked.left_at(100.0)[1] == 1.0


@pytest.mark.parametrize(("replicas", "again"), [(1, False), (2, True)])
def test_a_loss_is_tried_again_where_the_canary_has_another_replica(
    replicas: int, again: bool
) -> None:
    assignment, _ = begun(replicas=replicas)
    assert assignment.asks(DEMAND, 1.0).repeatable is again
