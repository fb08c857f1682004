from __future__ import annotations

from typing import Any

import pytest
import ray

from deployments.control.manual_target import ManualTarget, set_target
from deployments.process import actors

TARGET = ManualTarget("m", "gpu", 2)


class Method:
    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []

    def remote(self, *args: Any) -> str:
        self.asked.append(args)
        return self.answer


class Actor:
    def __init__(self, answer: str) -> None:
        self.pin = Method(answer)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray, "get", lambda asked, timeout: asked)

    def make(answer: str) -> Actor:
        actor = Actor(answer)
        monkeypatch.setattr(actors, "running_autoscaler", lambda: actor)
        return actor

    return make


def test_the_autoscaler_is_told_and_has_nothing_against_it(answers) -> None:
    actor = answers("")
    assert set_target(TARGET) == {"model": "m", "group": "gpu", "replicas": 2}
    assert actor.pin.asked == [("m", "gpu", 2)]


def test_what_it_has_against_it_is_the_error(answers) -> None:
    answers("there is no model m")
    assert set_target(TARGET) == {"error": "there is no model m", "away": False}


def test_one_that_is_away_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Any:
        raise ValueError("Failed to look up actor")

    monkeypatch.setattr(actors, "running_autoscaler", nobody)
    answer = set_target(TARGET)
    assert "the autoscaler is away" in answer["error"]
    assert answer["away"]
