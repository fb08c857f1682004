"""Numbers of replicas on a real server: by hand, by policy, and while whatever decides is gone."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import psutil
import pytest
from served import Server, patient, synthetic

pytestmark = pytest.mark.integration

OPTIONS = {"base_ms": 20}
MODEL = synthetic(options=OPTIONS, profile_s=0, replicas={"min": 1, "max": 3, "num_cpus": 0.1})
STILL = synthetic(options=OPTIONS, profile_s=0)


@pytest.fixture(scope="module")
def server(serve) -> Server:
    made: Server = serve({"a": MODEL, "still": STILL})
    return made.start()


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


def test_six_ups_and_downs_under_load_fail_no_request(server):
    still = server.replicas("still")
    with server.load("a", clients=6) as load:
        for number in (3, 1, 2, 1, 3, 1):
            assert scale(server, "a", number).startswith(f"a: {number} replicas, until")
            server.until(lambda number=number: has(server, "a", number), 60)
            load.goes_on(server)
    assert load.failures == []
    assert scaling(server, "a")["reason"] == "manual"
    assert server.replicas("still") == still
    assert scale(server, "a", "auto") == "a: as many replicas as its policy decides\n"
    server.until(lambda: not scaling(server, "a")["pinned"], 10)


def test_a_number_that_cannot_be_is_refused_in_words(server):
    port = ("--port", str(server.port))
    far = server.headrace("scale", "a", "9", *port)
    assert (far.returncode, far.stderr) == (
        1, "9 replicas are not within 1 to 3, the model's replicas.min and max\n",
    )  # fmt: skip
    unknown = server.headrace("scale", "b", "1", *port)
    assert "there is no model b; must be one of a, still" in unknown.stderr


def test_a_policy_changes_within_seconds_and_restarts_nothing(server):
    pids = server.replicas("a") | server.replicas("still")
    gateways = {process.pid for process in server.named("ray::ServeReplica:gateway")}
    tuned = {**MODEL, "scaling": {"policy": "cost-first", "mode": "observe"}}
    wider = {**STILL, "replicas": {"max": 2}}
    with server.load("a") as load:
        applied = server.headrace(
            "apply", str(server.write("tuned.yaml", {"a": tuned, "still": wider})),
            "--port", str(server.port),
        )  # fmt: skip
        assert applied.returncode == 0, applied.stderr
        began = time.monotonic()
        server.until(lambda: scaling(server, "a")["observed"], 10)
        assert time.monotonic() - began < patient(2)
        load.goes_on(server)
    assert load.failures == []
    assert server.replicas("a") | server.replicas("still") == pids
    assert {process.pid for process in server.named("ray::ServeReplica:gateway")} == gateways
    server.headrace("apply", str(server.file), "--port", str(server.port))


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_an_autoscaler_that_dies_or_hangs_costs_no_replica_and_decides_again(server, fault):
    scale(server, "a", 2)
    server.until(lambda: has(server, "a", 2), 60)
    pids, broken = server.replicas("a"), autoscaler(server)
    with server.load("a") as load:
        os.kill(broken.pid, fault)
        began = time.monotonic()
        server.until(lambda: not broken.is_running() and len(_alive(server)) == 1, 30)
        assert server.replicas("a") == pids
        # What was set by hand is known to its successor, which decides.
        server.until(lambda: bool(scaled_models(server)), 30)
        server.until(lambda: scaled_models(server).get("a", {}).get("pinned") == {"": 2}, 10)
        assert time.monotonic() - began < patient(10)
        assert server.replicas("a") == pids
        load.goes_on(server)
    assert load.failures == []
    scale(server, "a", 1)
    server.until(lambda: has(server, "a", 1), 60)


def _alive(server: Server) -> list[psutil.Process]:
    return [p for p in server.named("ray::AutoscalerActor") if p.status() != psutil.STATUS_STOPPED]
