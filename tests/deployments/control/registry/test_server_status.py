"""A server's status is the sum of what its gateways said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from deployments.contract.description import ModelDescription
from deployments.contract.registry import (
    GatewaySnapshot,
    ModelOutline,
    ModelSnapshot,
    RegistryStatus,
    ReplicaProgress,
    View,
)
from deployments.control.registry.server_status import replica_targets, server_status
from runtimes.types import DeviceMemory

TARGETS = {"b": 2, "device": 1}
SEEN = ModelSnapshot(
    replicas=1,
    waiting_rows=7,
    late_rows=1,
    oldest_wait_s=0.5,
    leases=2,
    backlog_s=0.25,
    drift=1,
    rows_by_bucket={"64": 5, "512": 2},
    rows_by_tenant={"acme": 7},
    ejected=["r#2"],
    ended={"r#0": (3.0, "its engine died")},
    device_memory={"r#1": DeviceMemory(1, 3, 80)},
)
OTHER = replace(
    SEEN,
    replicas=2,
    oldest_wait_s=0.1,
    rows_by_bucket={"64": 1, "128": 6},
    rows_by_tenant={"acme": 4, "a": 3},
    ejected=["r#1", "r#2"],
    ended={"r#3": (1.0, "its engine hung")},
    device_memory={"r#2": DeviceMemory(None, 4, 80)},
)


def gateway(seen: ModelSnapshot, **fields: Any) -> GatewaySnapshot:
    return GatewaySnapshot({"device": seen}, **fields)


@pytest.fixture
def raw(description: Callable[..., ModelDescription]) -> RegistryStatus:
    view = View(1, {"device": description(version="v7")}, frozenset({"b", "device"}), False)
    notes = [ReplicaProgress("b", "b#1", "warming", 0.5)]
    outlines = {"b": ModelOutline(runtime="synthetic")}
    return RegistryStatus(view, outlines, notes, {"g0": gateway(SEEN)})


def test_rows_leases_and_drift_are_sums_over_gateways(raw: RegistryStatus) -> None:
    raw.gateways["g1"] = gateway(OTHER)
    starting, device = server_status(raw, TARGETS)["models"]
    assert (device["name"], device["version"], device["state"]) == ("device", "v7", "ready")
    assert (device["waiting_rows"], device["leases"], device["drift"]) == (14, 4, 2)
    assert (device["oldest_wait_s"], device["replicas_ready"]) == (0.5, 2)
    assert list(device["rows_by_bucket"].items()) == [("64", 6), ("128", 6), ("512", 2)]
    assert device["ejected"] == ["r#1", "r#2"]
    assert device["ended"] == {"r#0": (3.0, "its engine died"), "r#3": (1.0, "its engine hung")}
    assert device["rows_by_tenant"] == {"a": 3, "acme": 11}
    assert (starting["state"], starting["waiting_rows"]) == ("starting", 0)
    assert (starting["runtime"], starting["replicas"], starting["replicas_ready"]) == (
        "synthetic", 2, 0,
    )  # fmt: skip


def test_a_model_that_readiness_does_without_is_marked(raw: RegistryStatus) -> None:
    raw.outlines["b"] = ModelOutline(optional=True)
    optional, device = server_status(raw, TARGETS)["models"]
    assert (optional["optional"], device["optional"]) == (True, False)


def test_a_server_is_frozen_once_every_gateway_is(raw: RegistryStatus) -> None:
    assert not server_status(raw, TARGETS)["frozen"]
    raw.gateways["g0"] = gateway(SEEN, frozen=True)
    assert server_status(raw, TARGETS)["frozen"]
    raw.gateways["g1"] = gateway(OTHER)
    assert not server_status(raw, TARGETS)["frozen"]
    raw.gateways.clear()
    assert not server_status(raw, TARGETS)["frozen"]


def test_a_gateways_problem_is_the_servers(raw: RegistryStatus) -> None:
    raw.gateways["g1"] = gateway(OTHER, problem="tenants are stale")
    status = server_status(raw, TARGETS)
    assert (status["problem"], status["gateways"]) == ("tenants are stale", 2)


def test_targets_are_those_of_models_replicas_alone() -> None:
    details = {
        "gateway": {"deployments": {"gateway": {"target_num_replicas": 2}}},
        "model-a": {
            "deployments": {
                "anchor": {"target_num_replicas": 1}, "model": {"target_num_replicas": 3},
            }
        },
        "model-b": {"deployments": {}},
    }  # fmt: skip
    assert replica_targets(details) == {"a": 3, "b": 0}


def test_a_replica_that_no_gateway_has_seen_yet_is_said_to_be_ready(raw: RegistryStatus) -> None:
    raw = replace(raw, progress=[ReplicaProgress("b", "b#1", "ready", 1.0)])
    starting, _ = server_status(raw, TARGETS)["models"]
    assert (starting["state"], starting["replicas_ready"]) == ("starting", 0)
    assert starting["reason"] == "its replica is ready; no gateway has seen it yet"


def test_a_canary_is_no_model_of_its_own(raw: RegistryStatus) -> None:
    view = replace(raw.view, declared=raw.view.declared | {"device@canary"})
    raw = replace(raw, view=view)
    raw.gateways["g0"].models["device@canary"] = OTHER
    starting, device = server_status(raw, TARGETS)["models"]
    assert (starting["name"], device["name"]) == ("b", "device")
    assert (device["waiting_rows"], device["leases"]) == (7, 2)


def test_memory_is_every_replicas_that_some_gateway_heard_of(raw: RegistryStatus) -> None:
    raw.gateways["g1"] = gateway(OTHER)
    starting, device = server_status(raw, TARGETS)["models"]
    assert device["device_memory_bytes"] == {
        "r#1": {"own": 1, "used": 3, "total": 80},
        "r#2": {"own": None, "used": 4, "total": 80},
    }
    assert starting["device_memory_bytes"] == {}
