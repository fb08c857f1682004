"""When are the registry and the autoscaler replaced by actors of another version of the code?"""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
import ray
from ray.exceptions import GetTimeoutError

from deployments.control import replacement
from deployments.control.dashboard import ClusterError
from deployments.control.replacement import RayActors, Replacement
from deployments.process import actors
from deployments.process.actors import AUTOSCALER, REGISTRY
from deployments.process.audit import AuditLine


class Cluster:
    """`codes`: of the actors; `published`: by whichever control started last."""

    def __init__(self, registry: str | None, autoscaler: str | None) -> None:
        self.codes = {REGISTRY: registry, AUTOSCALER: autoscaler}
        self.published = ""
        self.installed = "new"  # what an actor runs that is created now
        self.under_way: set[str] = set()
        self.replaced: list[str] = []
        self.now = 0.0

    def publish(self, code: str) -> None:
        self.published = code

    def newest(self) -> str:
        return self.published

    def code(self, name: str) -> str | None:
        return self.codes[name]

    def may_go(self, name: str) -> bool:
        return name not in self.under_way

    def replace(self, name: str) -> None:
        self.replaced.append(name)
        self.codes[name] = self.installed

    def control(self, code: str = "new", listed: str = "") -> Replacement:
        return Replacement(self, code, listed, lambda: self.now)

    def looks(self, control: Replacement, times: int = 1) -> list[str]:
        """What is replaced in that many looks."""
        before = len(self.replaced)
        for _ in range(times):
            self.now += 5
            control.look()
        return self.replaced[before:]


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> list[AuditLine]:
    found: list[AuditLine] = []
    monkeypatch.setattr(replacement.audit, "record", lambda line, file: found.append(line))
    return found


def test_actors_of_the_same_code_stay(lines) -> None:
    cluster = Cluster("new", "new")
    assert cluster.looks(cluster.control(listed="new"), 20) == []
    assert lines == []


@pytest.mark.parametrize("before", ["old", ""])  # "": too old to say
def test_actors_of_another_code_are_replaced_once_one_at_a_time(lines, before) -> None:
    cluster = Cluster(before, before)
    control = cluster.control()
    assert cluster.looks(control) == [REGISTRY]
    assert cluster.looks(control) == [AUTOSCALER]
    assert cluster.looks(control, 50) == []
    assert [(line.verb, line.object, line.before, line.after) for line in lines] == [
        ("replace", REGISTRY, before, "new"), ("replace", AUTOSCALER, before, "new"),
    ]  # fmt: skip


def test_the_next_one_waits_until_the_one_before_answers() -> None:
    cluster = Cluster("old", "old")
    cluster.installed = None
    control = cluster.control()
    assert cluster.looks(control, 4) == [REGISTRY]
    cluster.codes[REGISTRY] = "new"
    assert cluster.looks(control) == [AUTOSCALER]


def test_an_actor_that_does_not_answer_is_left_to_those_who_watch_it() -> None:
    cluster = Cluster(None, "old")
    assert cluster.looks(cluster.control(), 20) == []


def test_an_older_process_never_brings_its_code_back() -> None:
    cluster = Cluster("old", "old")
    older = cluster.control("old")
    newer = cluster.control("new")
    assert cluster.looks(newer, 2) == [REGISTRY, AUTOSCALER]
    assert cluster.looks(older, 20) == []


def test_a_node_without_the_code_that_was_deployed_decides_nothing() -> None:
    cluster = Cluster("new", "new")
    cluster.control("new", listed="new")
    assert cluster.looks(cluster.control("old", listed="new"), 20) == []


def test_a_node_that_gives_the_old_code_again_is_tried_once_a_minute() -> None:
    cluster = Cluster("old", "new")
    cluster.installed = "old"
    assert cluster.looks(cluster.control(), 24) == [REGISTRY, REGISTRY]


def test_the_registry_stays_while_a_rollout_is_judged_and_the_autoscaler_goes() -> None:
    cluster = Cluster("old", "old")
    cluster.under_way = {REGISTRY}
    control = cluster.control()
    assert cluster.looks(control, 4) == [AUTOSCALER]
    cluster.under_way = set()
    assert cluster.looks(control) == [REGISTRY]


def test_a_replacement_that_fails_is_recorded_and_tried_again(lines, monkeypatch) -> None:
    cluster = Cluster("old", "new")
    control = cluster.control()

    def silent(name: str) -> None:
        raise RuntimeError("no answer")

    with monkeypatch.context() as away:
        away.setattr(cluster, "replace", silent)
        with pytest.raises(RuntimeError):
            cluster.looks(control)
    assert lines[0].outcome == "failed"
    assert cluster.looks(control, 12) == [REGISTRY]


class Models:
    """`ServedModels`, as far as it is asked: the registry's rollouts are in these phases."""

    def __init__(self, *phases: str, silent: bool = False) -> None:
        self._phases, self._silent = phases, silent

    def details(self) -> dict[str, object]:
        if self._silent:
            raise ClusterError("Serve's controller does not answer")
        return {}

    def rollouts(self) -> list[dict[str, str]]:
        return [{"phase": phase} for phase in self._phases]


@pytest.mark.parametrize(
    ("models", "goes"),
    [
        (Models(), True),
        (Models("promoted", "aborted"), True),
        (Models("promoted", "step"), False),
        (Models("checking"), False),
        (Models(silent=True), False),
    ],
)
def test_the_registry_may_go_while_serve_answers_and_no_rollout_is_judged(models, goes) -> None:
    assert RayActors(models).may_go(REGISTRY) is goes
    assert RayActors(models).may_go(AUTOSCALER)


@pytest.mark.parametrize(
    ("fault", "runs"), [(AttributeError("code"), ""), (GetTimeoutError(), None)]
)
def test_an_actor_that_cannot_say_what_it_runs_is_too_old_and_a_silent_one_is_away(
    monkeypatch, fault, runs
) -> None:
    def answer(asked: object, timeout: float) -> str:
        raise fault

    monkeypatch.setattr(actors, "made", lambda name: MagicMock())
    monkeypatch.setattr(ray, "get", answer)
    assert RayActors(Models()).code(REGISTRY) == runs
