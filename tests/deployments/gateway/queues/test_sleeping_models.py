"""A model without replicas: ready while it may sleep, and else those who ask are told when."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fake_engines import until
from followed_registry import Following

from deployments.contract import errors
from deployments.contract.app_names import directory_key
from deployments.contract.description import (
    GroupDescription,
    ModelDescription,
)
from deployments.contract.scaling.messages import ModelOutlook
from deployments.gateway.models import catalogue
from deployments.gateway.models.served_model import ServedModel, terms
from deployments.gateway.queues import batch_queue, dispatcher_driver
from deployments.gateway.queues.dispatcher_driver import QueueRequest
from deployments.gateway.queues.pending_requests import PendingBatchRequest
from deployments.gateway.rows import RowColumn, Rows
from deployments.process.replica_directory import RunningReplica, directory_for

Describe = Callable[..., ModelDescription]
ASKS = QueueRequest("default", 0, slo_budget_s=1.0, budget_s=5.0)


async def test_a_sleeping_model_is_ready_and_takes_requests_for_good(
    following: Following, description: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(catalogue.time, "monotonic", lambda: now[0])
    models = following.catalogue
    await following.registry.tell(description())
    assert not models.all_ready
    models.take_outlooks({"device": ModelOutlook(may_sleep=True, wakes=True)}, 0.0)
    assert models.ready("device")
    assert models.asleep("device")
    assert models.all_ready
    assert models.waiting_for == []
    assert models.find("device")
    now[0] += 10 * catalogue.HOLD_S
    assert models.find("device")
    following.run(description())
    await until(lambda: not models.asleep("device"))
    assert models.ready("device")


@pytest.mark.parametrize(
    ("may_sleep", "runs", "age_s", "expected_s"),
    [
        (True, False, 0.0, 12.0),
        (True, False, 5.0, 7.0),
        (True, False, 13.0, 0.0),
        (True, True, 0.0, 0.0),  # a connection that breaks may be back at once
        (False, False, 0.0, 0.0),
    ],
)
async def test_only_a_sleeping_models_queue_is_told_when_to_expect_a_replica(
    following: Following,
    description: Describe,
    may_sleep: bool,
    runs: bool,
    age_s: float,
    expected_s: float,
) -> None:
    if runs:
        following.run(description())
    await following.registry.tell(description())
    outlook = ModelOutlook(may_sleep=may_sleep, ready_in_s=12.0)
    following.catalogue.take_outlooks({"device": outlook}, age_s)
    core = following.catalogue.served["device"].queue._dispatcher
    assert core._requests.admission.capacity_in_s == expected_s


async def test_who_comes_right_after_the_last_replica_went_is_told_what_a_start_takes(
    following: Following, description: Describe, now: list[float]
) -> None:
    """The autoscaler answers once a second, and was last asked while the replica ran."""
    await following.registry.tell(description())
    model = following.catalogue.served["device"]
    following.run(description())
    await until(lambda: model.replicas == 1)
    outlook = ModelOutlook(may_sleep=True, ready_in_s=12.0)
    following.catalogue.take_outlooks({"device": outlook}, 0.0)
    model.batches.cancel(submit(model, 4))
    directory_for(directory_key("device")).update([])
    assert model.replicas == 0
    with pytest.raises(errors.Overloaded) as refused:
        submit(model, 4)
    assert 11.0 < refused.value.retry_after_s <= 12.0


def of_two_sizes(description: Describe) -> ModelDescription:
    """`small` takes rows of up to 4, `large` of up to 8."""
    groups = tuple(
        GroupDescription(name, f"d-{name}", "synthetic", "fp32", "cpu", 1, 8, max_length=longest)
        for name, longest in (("large", None), ("small", 4))
    )
    return description(groups=groups)


async def run_groups(following: Following, model: ServedModel, *groups: str) -> None:
    for name in ("large", "small"):
        metadata = (("digest", f"d-{name}"), ("group", name))
        listed = [RunningReplica(f"{name}-0", metadata)] if name in groups else []
        directory_for(directory_key("device", name)).update(listed)
    await until(lambda: model.replicas == len(groups))


def submit(model: ServedModel, length: int) -> PendingBatchRequest:
    columns = {"ids": RowColumn("INT64", [np.ones(length, np.int64)], [(length,)])}
    rows = Rows(1, (length,), columns, None)
    return model.batches.submit(rows, terms(model.description), ASKS)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by every queue's clock, which stands still unless a test moves it."""
    time = [1000.0]
    monkeypatch.setattr(dispatcher_driver, "clock", lambda: time[0])
    monkeypatch.setattr(batch_queue, "clock", lambda: time[0])
    return time


async def test_rows_of_a_group_that_is_away_are_refused_after_a_while(
    following: Following, description: Describe, now: list[float]
) -> None:
    await following.registry.tell(of_two_sizes(description))
    model = following.catalogue.served["device"]
    outlook = ModelOutlook(ready_in_s=13.5)
    for _ in range(2):  # each time anew
        await run_groups(following, model, "small")
        following.catalogue.take_outlooks({"device": outlook}, 0.0)
        waits = submit(model, 8)  # its connection may be back at once
        now[0] += catalogue.HOLD_S
        with pytest.raises(errors.NotReady, match="a row of length 8") as refused:
            submit(model, 8)
        assert refused.value.retry_after_s == 13.5
        model.batches.cancel(submit(model, 4))
        await run_groups(following, model, "large", "small")
        model.batches.cancel(submit(model, 8))
        model.batches.cancel(waits)
    assert dict(model.queue.snapshot().offered.refused)["closed"] == 2


async def test_rows_that_wake_a_group_wait_for_it_if_they_live_that_long(
    following: Following, description: Describe, now: list[float]
) -> None:
    await following.registry.tell(of_two_sizes(description))
    model = following.catalogue.served["device"]
    await run_groups(following, model, "small")
    for ready_in_s, waits in ((12.0, False), (2.0, True)):
        outlook = ModelOutlook(wakes_up_to=8, ready_in_s=ready_in_s)
        following.catalogue.take_outlooks({"device": outlook}, 0.0)
        if waits:
            model.batches.cancel(submit(model, 8))
        else:
            with pytest.raises(errors.Overloaded) as refused:
                submit(model, 8)
            assert refused.value.retry_after_s == ready_in_s
        now[0] += catalogue.HOLD_S


async def test_a_model_that_is_withdrawn_does_not_count_as_asleep(
    following: Following, description: Describe
) -> None:
    models = following.catalogue
    await following.registry.tell(description())
    models.take_outlooks({"device": ModelOutlook(may_sleep=True)}, 0.0)
    await following.registry.tell(declared="device")
    assert not models.ready("device")
    assert models.waiting_for == ["device"]


async def test_a_model_that_must_run_is_not_ready_without_replicas(
    following: Following, description: Describe
) -> None:
    models = following.catalogue
    await following.registry.tell(description())
    models.take_outlooks({"device": ModelOutlook(may_sleep=False)}, 0.0)
    assert not models.ready("device")
    assert not models.all_ready


@pytest.mark.parametrize(
    ("ready_in_s", "told_s"), [(0.0, 2.0), (2.0, 2.0), (13.5, 13.5), (500.0, 60.0)]
)
async def test_who_finds_a_model_not_ready_is_told_when_it_may_be(
    following: Following, ready_in_s: float, told_s: float
) -> None:
    await following.registry.tell(declared="device")
    following.catalogue.take_outlooks({"device": ModelOutlook(ready_in_s=ready_in_s)}, 0.0)
    with pytest.raises(errors.NotReady) as refused:
        following.catalogue.find("device")
    assert refused.value.retry_after_s == told_s
