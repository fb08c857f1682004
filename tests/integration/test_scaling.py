"""Numbers of replicas on a real server: by hand, by policy, and while whatever decides is gone."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import psutil
import pytest
from served import Server, adder, patient, synthetic

pytestmark = pytest.mark.integration

# Nothing of it may run twice, so that a batch that was lost with its replica would be a failure.
MODEL = adder(150, retry=False, profile_s=0, replicas={"min": 1, "max": 3, "num_cpus": 0.1})
STILL = synthetic(options={"base_ms": 20}, profile_s=0)
SHARED = {"wide": MODEL, "still": STILL}


@pytest.fixture(scope="module")
def server(shared) -> Server:
    made: Server = shared
    return made


def scale(server: Server, model: str, number: int | str) -> str:
    done = server.headrace("scale", model, str(number), "--port", str(server.port))
    assert done.returncode == 0, done.stderr
    return done.stdout


def scaling(server: Server, model: str) -> dict[str, Any]:
    account: dict[str, Any] = scaled_models(server)[model]
    return account


def scaled_models(server: Server) -> dict[str, Any]:
    """Empty while no autoscaler answers."""
    return dict((server.status()["scaling"] or {}).get("models", {}))


def autoscaler(server: Server) -> psutil.Process:
    (process,) = server.named("ray::AutoscalerActor")
    return process


def has(server: Server, model: str, number: int) -> bool:
    return len(server.replicas(model)) == number


@pytest.mark.chaos
def test_ups_and_downs_under_load_fail_no_request(server):
    still = server.replicas("still")
    with server.load("wide", clients=12) as load:
        for number in (3, 1, 2, 1):
            assert scale(server, "wide", number).startswith(f"wide: {number} replicas, until")
            server.until(lambda number=number: has(server, "wide", number), 60)
            load.goes_on(server)
    assert load.failures == []
    assert scaling(server, "wide")["reason"] == "manual"
    assert server.replicas("still") == still
    assert scale(server, "wide", "auto") == "wide: as many replicas as its policy decides\n"
    server.until(lambda: not scaling(server, "wide")["pinned"], 10)


def test_a_number_that_cannot_be_is_refused_in_words(server):
    port = ("--port", str(server.port))
    far = server.headrace("scale", "wide", "9", *port)
    assert (far.returncode, far.stderr) == (
        1, "9 replicas are not within 1 to 3, the model's replicas.min and max\n",
    )  # fmt: skip
    unknown = server.headrace("scale", "nobody", "1", *port)
    assert "there is no model nobody; must be one of " in unknown.stderr


def test_a_policy_changes_within_seconds_and_restarts_nothing(server):
    pids = server.replicas("wide") | server.replicas("still")
    gateways = {process.pid for process in server.named("ray::ServeReplica:gateway")}
    tuned = {**MODEL, "scaling": {"policy": "cost-first", "mode": "observe"}}
    wider = {**STILL, "replicas": {"max": 2}}
    file = server.write("tuned.yaml", {**server.models, "wide": tuned, "still": wider})
    with server.load("wide") as load:
        applied = server.headrace("apply", str(file), "--port", str(server.port))
        assert applied.returncode == 0, applied.stderr
        began = time.monotonic()
        server.until(lambda: scaling(server, "wide")["observed"], 10)
        assert time.monotonic() - began < patient(2)
        load.goes_on(server)
    assert load.failures == []
    assert server.replicas("wide") | server.replicas("still") == pids
    assert {process.pid for process in server.named("ray::ServeReplica:gateway")} == gateways
    server.headrace("apply", str(server.file), "--port", str(server.port))


@pytest.mark.chaos
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_an_autoscaler_that_dies_or_hangs_costs_no_replica_and_decides_again(server, fault):
    scale(server, "wide", 2)
    server.until(lambda: has(server, "wide", 2), 60)
    pids, broken = server.replicas("wide"), autoscaler(server)
    with server.load("wide") as load:
        os.kill(broken.pid, fault)
        began = time.monotonic()
        server.until(lambda: not broken.is_running() and len(_alive(server)) == 1, 30)
        assert server.replicas("wide") == pids
        # What was set by hand is known to its successor, which decides.
        server.until(lambda: bool(scaled_models(server)), 30)
        server.until(lambda: scaled_models(server).get("wide", {}).get("pinned") == {"": 2}, 10)
        assert time.monotonic() - began < patient(10)
        assert server.replicas("wide") == pids
        load.goes_on(server)
    assert load.failures == []
    scale(server, "wide", 1)
    server.until(lambda: has(server, "wide", 1), 60)


def _alive(server: Server) -> list[psutil.Process]:
    return [p for p in server.named("ray::AutoscalerActor") if p.status() != psutil.STATUS_STOPPED]
