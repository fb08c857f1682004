"""A registry that hangs, which is not dead: nobody waits for it without end, nothing stops."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from deployments.cluster import local_cluster
from deployments.cluster.dashboard import ClusterError
from deployments.cluster.local_cluster import LocalCluster
from deployments.cluster.model_arguments import digests
from deployments.contract.registry import ReplicaProgress


class Hanging:
    """The registry's handle: takes every question and answers none."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return self

    def remote(self, *_: Any) -> object:
        return object()


class Serve:
    """Serve's REST."""

    def __init__(self) -> None:
        self.put_: list[Any] = []

    def put(self, config: Any) -> None:
        self.put_.append(config)

    def details(self) -> Any:
        state = {"status": "RUNNING", "message": ""}
        return {"applications": {"model-a": state}}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """How long each question was waited for."""
    waited: list[float | None] = []

    def get(_: object, timeout: float | None = None) -> Any:
        waited.append(timeout)
        raise ray.exceptions.GetTimeoutError

    monkeypatch.setattr(local_cluster.ray, "get", get)
    return waited


@pytest.fixture
def cluster() -> LocalCluster:
    made = LocalCluster.__new__(LocalCluster)
    made._registry, made._serve = Hanging(), Serve()  # type: ignore[assignment]
    made._heard = True
    made._digests = {}
    return made


def test_a_change_is_put_although_the_registry_hears_nothing(
    cluster: LocalCluster, waits: list[float | None]
) -> None:
    cluster.put({"applications": []})
    assert cluster._serve.put_ == [{"applications": []}]  # type: ignore[attr-defined]
    assert cluster._registry.asked == ["forget_failures", "refresh"]
    assert waits == [2.0, 2.0]


def test_what_only_the_registry_knows_is_refused_in_time(
    cluster: LocalCluster, waits: list[float | None]
) -> None:
    for ask in (cluster.status, cluster.descriptions):
        with pytest.raises(ClusterError, match="the registry does not answer within"):
            ask()
    assert max(limit_s or 1e9 for limit_s in waits) <= 10


def test_failures_are_serves_own_where_no_replica_is_heard_of(
    cluster: LocalCluster, waits: list[float | None]
) -> None:
    assert cluster.progress() == []
    assert cluster.cannot_start(["a"]) == {}


def test_a_stop_does_not_wait_for_gateways_that_cannot_be_told(
    cluster: LocalCluster, waits: list[float | None]
) -> None:
    cluster.drain(3600.0)
    assert waits == [5.0]


def test_a_registry_that_starts_is_waited_for_longer_until_it_was_heard(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster._heard = False
    waited: list[float | None] = []

    def get(_: object, timeout: float | None = None) -> Any:
        waited.append(timeout)
        return []

    monkeypatch.setattr(local_cluster.ray, "get", get)
    cluster.progress()
    cluster.progress()
    assert waited == [60.0, 2.0]


def test_a_version_that_was_taken_back_may_fail_late(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = {"name": "a", "settings": {"runtime": "synthetic"}, "channel": {}}
    put = {"applications": [{"name": "model-a", "args": args}]}
    (digest,) = digests(args)
    told = [ReplicaProgress("a", "r1", "failed", 0.0, "no memory", digest="another's")]
    monkeypatch.setattr(local_cluster.ray, "get", lambda _, timeout=None: told)
    cluster.put(put)
    assert cluster.cannot_start(["a"]) == {}
    told.append(ReplicaProgress("a", "r2", "failed", 0.0, "no such file", digest=digest))
    assert cluster.cannot_start(["a"]) == {"a": "no such file"}
