"""A registry that hangs, which is not dead: nobody waits for it without end, nothing stops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import ray

from deployments.contract.listed import Entry
from deployments.contract.model_arguments import digests
from deployments.contract.registry import (
    ALL_PROGRESS,
    STATUS,
    GatewaySnapshot,
    ModelSnapshot,
    RegistryStatus,
    ReplicaProgress,
    View,
)
from deployments.control.application_list import AppList, by_name
from deployments.control.dashboard import ClusterError
from deployments.control.serve_config import BUILDERS, serve_config
from deployments.control.served_models import ServedModels
from deployments.control.supervisor.local_cluster import STARTS, LocalCluster, why_waiting
from deployments.settings.model import ModelSettings
from deployments.settings.tree import Settings


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
        self.listed: dict[str, Any] = {}

    def put(self, config: Any) -> None:
        self.put_.append(config)

    def details(self) -> Any:
        state = {"status": "RUNNING", "message": ""}
        return {"applications": self.listed or {"model-a": state}}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """How long each question was waited for."""
    waited: list[float | None] = []

    def get(_: object, timeout: float | None = None) -> Any:
        waited.append(timeout)
        raise ray.exceptions.GetTimeoutError

    monkeypatch.setattr(ray, "get", get)
    return waited


@pytest.fixture
def cluster() -> LocalCluster:
    made = LocalCluster.__new__(LocalCluster)
    ServedModels.__init__(made, Serve(), Hanging())
    made._answered = True
    made._reached, made._tls = ("127.0.0.1", 1), False
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
    cluster._answered = False
    waited: list[float | None] = []

    def get(_: object, timeout: float | None = None) -> Any:
        waited.append(timeout)
        return ALL_PROGRESS.encode([])

    monkeypatch.setattr(ray, "get", get)
    cluster.progress()
    cluster.progress()
    assert waited == [60.0, 2.0]


def test_a_version_that_was_taken_back_may_fail_late(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = {"name": "a", "settings": {"runtime": "synthetic"}, "channel": {}}
    put = {"applications": [{"name": "model-a", "import_path": BUILDERS["model"], "args": args}]}
    (digest,) = digests(args)
    told = [ReplicaProgress("a", "r1", "failed", 0.0, "no memory", digest="another's")]
    monkeypatch.setattr(ray, "get", lambda _, timeout=None: ALL_PROGRESS.encode(told))
    cluster.put(put)
    assert cluster.cannot_start(["a"]) == {}
    told.append(ReplicaProgress("a", "r2", "failed", 0.0, "no such file", digest=digest))
    assert cluster.cannot_start(["a"]) == {"a": "no such file"}


def test_a_model_that_was_taken_off_the_list_could_not_start_either(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "get", lambda _, timeout=None: ALL_PROGRESS.encode([]))
    settings = Settings.model_validate({"models": {"b": {"runtime": "synthetic"}}})
    applications = by_name(serve_config(settings, one_machine=True))
    listed = AppList.of(applications).with_entry("a", Entry(1, "over", why="no such file"))
    cluster._serve.listed = {  # type: ignore[attr-defined]
        name: {"status": "RUNNING", "message": "", "deployed_app_config": app}
        for name, app in listed.all().items()
    }
    assert cluster.cannot_start(["a", "b"]) == {"a": "no such file"}


def seen_by(*gateways: dict[str, tuple[int, int]]) -> bytes:
    """What the registry answers: rows that wait and leases, by model, gateway by gateway."""
    declared, optional = frozenset({"a", "a@canary"}), frozenset({"a@canary"})
    seen = {
        f"g{at}": GatewaySnapshot(
            {
                name: ModelSnapshot(replicas=1, waiting_rows=rows, leases=leases)
                for name, (rows, leases) in each.items()
            }
        )
        for at, each in enumerate(gateways)
    }
    view = View(1, {}, declared, False, optional=optional)
    return STATUS.encode(RegistryStatus(view, {}, [], seen))


@pytest.mark.parametrize(
    ("gateways", "held"),
    [
        ([], 0),
        ([{"a": (9, 9)}], 0),
        ([{"a": (9, 9), "a@canary": (0, 0)}], 0),
        ([{"a": (9, 9), "a@canary": (3, 0)}, {"a": (9, 9), "a@canary": (0, 2)}], 5),
    ],
)
def test_what_a_canary_holds_is_its_rows_and_leases_at_all_gateways(
    cluster: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
    gateways: list[dict[str, tuple[int, int]]],
    held: int,
) -> None:
    said = seen_by(*gateways)
    monkeypatch.setattr(ray, "get", lambda _, timeout=None: said)
    assert cluster.held("a@canary") == held


@pytest.mark.parametrize("more", [{}, {"a@canary": (3, 0)}])
def test_readiness_does_without_canaries(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, more: dict[str, tuple[int, int]]
) -> None:
    said = seen_by({"a": (0, 0)}, {"a": (0, 0), **more})
    monkeypatch.setattr(ray, "get", lambda _, timeout=None: said)
    ready = SimpleNamespace(status_code=200, headers={})
    monkeypatch.setattr(httpx, "get", lambda url, timeout, verify: ready)
    assert cluster.ready(2)
    assert not cluster.ready(3)


def test_a_server_is_not_ready_while_only_serves_proxy_answers(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"via": "1.1 serve-proxy"}
    ready = SimpleNamespace(status_code=200, headers=headers)
    monkeypatch.setattr(httpx, "get", lambda url, timeout, verify: ready)
    assert not cluster.ready(1)
    headers.clear()
    assert cluster.ready(1)


MIB = 1 << 20


def model(**replicas: Any) -> ModelSettings:
    return ModelSettings(runtime="synthetic", replicas={"count": 1, **replicas})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("replicas", "total", "free", "said"),
    [
        ({"num_gpus": 1}, {}, {}, "waits for 1 GPU (replicas.num_gpus): this machine has 0"),
        (
            {"num_gpus": 0.5},
            {"GPU": 1.0},
            {"GPU": 0.25},
            "waits for 0.5 GPU (replicas.num_gpus): 0.25 of 1 are free",
        ),
        ({"num_gpus": 1}, {"GPU": 1.0}, {"GPU": 1.0}, STARTS),
        ({}, {}, {}, STARTS),
        (
            {"memory_mib": 4096},
            {"memory": 2048 * MIB},
            {"memory": 2048 * MIB},
            "waits for 4096 MiB of memory (replicas.memory_mib): this machine has 2048",
        ),
        (
            {"resources": {"mig": 1}},
            {},
            {},
            "waits for 1 mig (replicas.resources.mig): this machine has 0",
        ),
    ],
)
def test_the_reason_names_what_is_short(
    replicas: dict[str, Any], total: dict[str, float], free: dict[str, float], said: str
) -> None:
    assert why_waiting(model(**replicas), total, free) == said
