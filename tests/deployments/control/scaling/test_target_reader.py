"""What Serve's policy copies, and what it leaves as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cloudpickle
import pytest

from deployments.contract.scaling.messages import Observed
from deployments.control.scaling import copy_targets, target_reader
from deployments.control.scaling.copy_targets import CopyTargets
from deployments.control.scaling.target_reader import STALE_S, TargetReader


@dataclass
class Context:
    """As Serve's, as far as it is read."""

    app_name: str = "model-a"
    deployment_name: str = "model"
    current_num_replicas: int = 2
    target_num_replicas: int = 2


class Autoscaler:
    """Answers an exchange; counts and keeps what it was told."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.told: list[dict[str, Observed]] = []

    def __call__(self, observed: Any) -> Any:
        self.told.append(dict(observed))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def told(clock: Clock, answer: Any) -> TargetReader:
    """A reader that has heard this answer just now, and whose thread never runs."""
    reader = TargetReader(Autoscaler(answer), clock)
    reader._started = True
    reader.copied({"id": Context()})
    if not isinstance(answer, Exception):
        reader.exchange()
    return reader


def test_a_target_is_copied(clock):
    reader = told(clock, {"model-a/model": 3, "model-b/model": 9})
    assert reader.copied({"id": Context()}) == {"id": 3}


def test_a_target_that_is_there_already_is_left_out(clock):
    assert told(clock, {"model-a/model": 2}).copied({"id": Context()}) == {}


@pytest.mark.parametrize(
    "number", [None, float("nan"), float("inf"), -1, 2.5, 3.0, True, "3", 10**9, [], object()]
)
def test_what_is_no_number_of_replicas_holds(clock, number):
    assert told(clock, {"model-a/model": number}).copied({"id": Context()}) == {}


@pytest.mark.parametrize("answer", [{}, {"model-b/model": 3}, {"model-a/other": 3}])
def test_a_deployment_that_nobody_speaks_of_holds(clock, answer):
    assert told(clock, answer).copied({"id": Context()}) == {}


def test_a_number_counts_for_five_seconds(clock):
    reader = told(clock, {"model-a/model": 3})
    clock.now += STALE_S - 0.1
    assert reader.copied({"id": Context()}) == {"id": 3}
    clock.now += 0.2
    assert reader.copied({"id": Context()}) == {}


def test_a_number_is_as_old_as_the_question(clock):
    """The answer may have taken its time."""
    reader = told(clock, {})

    def slow(observed: Any) -> dict[str, int]:
        clock.now += STALE_S
        return {"model-a/model": 3}

    reader._exchange = slow
    reader.exchange()
    assert reader.copied({"id": Context()}) == {}


def test_a_failed_exchange_keeps_the_last_numbers(clock):
    reader = told(clock, {"model-a/model": 3})
    reader._exchange = Autoscaler(RuntimeError("away"))
    with pytest.raises(RuntimeError):
        reader.exchange()
    assert reader.copied({"id": Context()}) == {"id": 3}


def test_nothing_running_and_no_number_holds_the_target(clock):
    """A floor would shrink what a restarted controller has not found again yet."""
    reader = told(clock, {})
    assert reader.copied({"id": Context(current_num_replicas=0, target_num_replicas=5)}) == {}


def test_what_runs_is_told_and_forgotten_when_it_is_gone(clock):
    autoscaler = Autoscaler({})
    reader = TargetReader(autoscaler, clock)
    reader._started = True
    reader.copied({1: Context(), 2: Context(deployment_name="model-gpu", current_num_replicas=0)})
    reader.exchange()
    clock.now += STALE_S + 1
    reader.copied({1: Context(target_num_replicas=4)})
    reader.exchange()
    assert autoscaler.told == [
        {"model-a/model": Observed(2, 2), "model-a/model-gpu": Observed(0, 2)},
        {"model-a/model": Observed(2, 4)},
    ]
    assert len(reader._observed) == 1


def test_the_thread_starts_with_the_first_question_and_survives_failures(monkeypatch):
    import threading

    asked, calls = threading.Event(), []

    def failing(observed: Any) -> dict[str, int]:
        calls.append(observed)
        if len(calls) == 3:
            asked.set()
            threading.Event().wait()  # a daemon: it ends with the process
        raise RuntimeError("away")

    monkeypatch.setattr(target_reader, "EVERY_S", 0.0)
    reader = TargetReader(failing)
    assert calls == []
    assert reader.copied({"id": Context()}) == {}
    assert asked.wait(10)


class Broken:
    """A context of another Ray."""

    @property
    def app_name(self) -> str:
        raise AttributeError("renamed")


def test_the_policy_never_raises(monkeypatch, clock):
    reader = told(clock, {"model-a/model": 3})
    monkeypatch.setattr(target_reader, "reader", lambda: reader)
    assert CopyTargets()({"id": Context()}) == ({"id": 3}, {})
    assert CopyTargets()({"id": Broken()}) == ({}, {})
    assert CopyTargets()(None) == ({}, {})  # type: ignore[arg-type]

    def fails() -> TargetReader:
        raise ImportError("not installed here")

    monkeypatch.setattr(target_reader, "reader", fails)
    assert CopyTargets()({"id": Context()}) == ({}, {})


def test_the_policy_is_pickled_by_value_and_shares_the_processs_reader(monkeypatch, clock):
    """As Serve does; what it remembers must not be a copy."""
    cloudpickle.register_pickle_by_value(copy_targets)
    try:
        pickled = cloudpickle.dumps(CopyTargets)
    finally:
        cloudpickle.unregister_pickle_by_value(copy_targets)
    copied = cloudpickle.loads(pickled)
    reader = told(clock, {"model-a/model": 5})
    monkeypatch.setattr(target_reader, "reader", lambda: reader)
    assert copied()({"id": Context()}) == ({"id": 5}, {})
