"""A model without replicas: ready while it may sleep, and else those who ask are told when."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_engines import until
from followed_registry import Following

from deployments.contract import errors
from deployments.contract.description import (
    ModelDescription,
)
from deployments.contract.scaling.messages import ModelOutlook
from deployments.gateway.models import catalogue

Describe = Callable[..., ModelDescription]


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
