"""A handle that outlives its actor, and the code from which actors are created."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError

from deployments.process import actors
from deployments.process.actors import REGISTRY, Code, NamedActor


class Answer:
    """What a call returns."""

    def __init__(self, value: object) -> None:
        self._future: Future[object] = Future()
        if isinstance(value, Exception):
            self._future.set_exception(value)
        else:
            self._future.set_result(value)

    def future(self) -> Future[object]:
        return self._future


class Actor:
    """Answers each call with `says`."""

    def __init__(self, says: object) -> None:
        self.says = says
        self.serves = self

    def remote(self, name: str) -> Answer:
        return Answer(self.says)


@pytest.fixture
def one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Actors, each of which has the name after the one before; the last one keeps it."""
    found: list[Any] = []

    def made(name: str) -> Any:
        assert name == REGISTRY
        actor = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(actor, Exception):
            raise actor
        return actor

    class AtOnce(threading.Thread):
        def start(self) -> None:
            self.run()

    monkeypatch.setattr(actors, "made", made)
    monkeypatch.setattr(actors.threading, "Thread", AtOnce)
    return found


def said(actor: Any) -> Any:
    answer = actor.serves.remote("m").future()
    return type(fault) if (fault := answer.exception()) else answer.result()


def test_calls_reach_the_next_actor_once_one_is_gone(one_after_the_other) -> None:
    one_after_the_other += [Actor(ActorDiedError()), Actor("second")]
    actor = NamedActor(REGISTRY)
    assert [said(actor) for _ in range(3)] == [ActorDiedError, "second", "second"]


def test_the_search_goes_on_where_there_is_none_yet(one_after_the_other) -> None:
    one_after_the_other += [Actor(ActorDiedError()), RuntimeError("no store"), Actor("second")]
    actor = NamedActor(REGISTRY)
    assert [said(actor) for _ in range(3)] == [ActorDiedError, ActorDiedError, "second"]


@pytest.mark.parametrize("fault", [ActorUnavailableError("", b"1" * 16), ValueError()])
def test_an_actor_that_ray_restarts_or_that_refuses_is_not_looked_up(
    one_after_the_other, fault
) -> None:
    one_after_the_other += [Actor(fault), Actor("second")]
    actor = NamedActor(REGISTRY)
    assert [said(actor) for _ in range(2)] == [type(fault)] * 2


class Remote:
    """`ray.remote`, as far as it is needed: `given` are the options."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def __call__(self, of: type) -> Remote:
        return self

    def options(self, **given: Any) -> Remote:
        self.given = given
        return self

    def remote(self) -> str:
        return "made"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> tuple[Remote, dict[str, bytes]]:
    """A cluster without actors: what is created, and the store."""
    remote, store = Remote(), {}

    def nobody(*of: Any, **given: Any) -> Any:
        raise ValueError

    monkeypatch.setattr(ray, "get_actor", nobody)
    monkeypatch.setattr(ray, "remote", remote)
    monkeypatch.setattr(actors.cluster_store, "get", store.get)
    monkeypatch.setattr(actors.cluster_store, "put", store.__setitem__)
    return remote, store


def test_whoever_creates_an_actor_takes_the_code_that_was_published_last(cluster) -> None:
    remote, _ = cluster
    for place in ({"working_dir": "https://one.zip"}, {"working_dir": "https://two.zip"}):
        actors.publish_newest(Code("a", place))
        assert actors.made(REGISTRY) == "made"
        assert remote.given["runtime_env"] == place


def test_where_nothing_or_no_place_was_published_an_actor_runs_where_its_creator_does(
    cluster,
) -> None:
    remote, _ = cluster
    assert actors.newest() is None
    for publish in (lambda: None, lambda: actors.publish_newest(Code("a", {}))):
        publish()
        actors.made(REGISTRY)
        assert remote.given["runtime_env"] is None
