"""A replica of the shared pool on a real cluster: becomes what it is told, answers while a model's
own replica is away, leaves and dies without a failed request. Who tells it is the test."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_cluster import HERE, Cluster, until
from served import ANSWER_S, Load, adder, http, metric, patient, synthetic

pytestmark = pytest.mark.integration

LIMIT_MIB = 900  # a pool replica that holds synthetic models has a third of it
MODELS = {
    "a": synthetic(options={"base_ms": 5}, replicas={"num_cpus": 0.1}),
    "b": adder(5, replicas={"num_cpus": 0.1}),
    # Its own replica does one row in 50 ms, so the pool gets what would wait for longer.
    "grows": synthetic(
        options={"base_ms": 50, "grow_mib": 10},
        batch={"max_size": 1},
        replicas={"num_cpus": 0.1},
        crashes={"hold_s": 1},
    ),
}
POOL = {
    "min": 1, "max": 1, "num_cpus": 0.1, "memory_mib": 128,
    "memory_limit_mib": LIMIT_MIB,
}  # fmt: skip


class Orders:
    """Speaks to the stand-in for the autoscaler."""

    def __init__(self, cluster: Cluster) -> None:
        environ = cluster.environ | {"RAY_ADDRESS": f"{HERE}:{cluster.ports['gcs']}"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pool_orders", str(cluster.file)], env=environ,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._read()

    def end(self) -> None:
        """The stand-in goes with it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(patient(30))

    def _read(self) -> list[dict[str, Any]]:
        assert self.process.stdout is not None
        # Ray prints warnings of its own between the answers.
        line = next(each for each in self.process.stdout if each.startswith("["))
        found: list[dict[str, Any]] = json.loads(line)
        return found

    def ask(self, names: list[str] | None) -> list[dict[str, Any]]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(names) + "\n")
        self.process.stdin.flush()
        return self._read()

    def held(self) -> set[str]:
        """Models that the pool serves, as its replicas last said."""
        reports = self.ask(None)
        return {each["model"] for report in reports for each in report["residents"]
                if each["serves"]}  # fmt: skip

    def hold(self, *names: str) -> None:
        """Returns when the pool says that it holds these and no others."""
        self.ask(list(names))
        until(lambda: self.held() == set(names), 30)


class Served:
    def __init__(self, cluster: Cluster, orders: Orders) -> None:
        self.cluster = cluster
        self.orders = orders

    def url(self, model: str) -> str:
        return f"{self.cluster.url}/v2/models/{model}/infer"

    def until(self, condition: Any, limit_s: float) -> None:
        until(condition, limit_s)

    def load(self, model: str, clients: int = 4) -> Load:
        return Load(self.url(model), clients, {})

    def metrics(self) -> str:
        """The gateway's page."""
        port = self.cluster.gateway["metrics_port"]
        url = f"http://{self.cluster.gateway['host']}:{port}/metrics"
        time.sleep(1.0)  # as old as the page may be
        return http.get(url, timeout=ANSWER_S).text

    def reserves(self, model: str) -> float:
        """Healthy replicas of the pool, as the gateway sees them."""
        page = self.metrics()
        if 'group="pool"' not in page:
            return 0.0
        return metric(page, "headrace_group_healthy_replicas", model=model, group="pool")

    def strike(self, title: str, number: int) -> set[int]:
        """All of these get the signal."""
        pids = self.cluster.replicas(title)
        assert pids, title
        for pid in pids:
            psutil.Process(pid).send_signal(number)
        return pids


@pytest.fixture(scope="module")
def served(one_cluster: Cluster) -> Iterator[Served]:
    cluster = one_cluster
    cluster.file = cluster.write(cluster.folder, MODELS, scaling={"pool": POOL})
    orders = Orders(cluster)
    try:
        done = cluster.apply(cluster.file)
        assert done.returncode == 0, done.stderr
        until(lambda: len(cluster.replicas("headrace-pool:pool")) == 1, 60)
        yield Served(cluster, orders)
        cluster.clear()
    finally:
        orders.end()


def test_it_serves_two_models_while_their_own_replicas_are_away(served: Served) -> None:
    served.orders.hold("a")
    served.orders.hold("a", "b")
    loads = {name: served.load(name) for name in "ab"}
    served.until(lambda: all(served.reserves(name) == 1 for name in "ab"), 30)
    try:
        for name, load in loads.items():
            killed = served.strike(f"model-{name}:model", signal.SIGKILL)
            load.goes_on(served, 50)
            served.until(
                lambda n=name, gone=killed: served.cluster.replicas(f"model-{n}:model") - gone, 60
            )
    finally:
        for load in loads.values():
            load.stop()
    assert [load.failures for load in loads.values()] == [[], []]


def test_a_model_leaves_it_under_load_and_no_request_fails(served: Served) -> None:
    served.orders.hold("a", "b")
    load = served.load("a", clients=16)
    try:
        served.until(lambda: served.reserves("a") == 1, 30)
        served.orders.hold("b")
        served.until(lambda: served.reserves("a") == 0, 30)
        load.goes_on(served, 50)
    finally:
        load.stop()
    assert load.failures == []


def test_over_its_memory_limit_it_names_the_batch_and_no_request_fails(served: Served) -> None:
    """Ray's file has the line, although the process ends at once."""
    served.orders.hold("grows")
    served.until(lambda: served.reserves("grows") == 1, 30)
    (pid,) = served.cluster.replicas("headrace-pool:pool")
    own = served.cluster.replicas("model-grows:model")
    log = Path(f"/proc/{pid}/fd/2").readlink()
    load = served.load("grows", clients=16)
    try:
        served.until(lambda: pid not in served.cluster.replicas("headrace-pool:pool"), 30)
        served.orders.ask(["a"])
        load.goes_on(served, 50)
    finally:
        load.stop()
    assert load.failures == []
    (line,) = [each for each in log.read_text().splitlines() if "(memory_limit_mib)" in each]
    assert f"MiB resident, {LIMIT_MIB} allowed" in line
    assert re.search(r"[1-9]\d* MiB of it since a batch of 1 rows of up to 3 tokens of", line), line
    assert "of model grows began (gateway " in line
    page = served.metrics()
    assert metric(page, "headrace_batches_total", model="grows", end="lost") >= 1
    assert metric(page, "headrace_retries_total", model="grows") >= 1
    assert served.cluster.replicas("model-grows:model") == own


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_no_request_fails_when_it_is_struck_and_its_successor_takes_its_place(
    served: Served, number: int
) -> None:
    """One that is stopped is ended from outside."""
    served.orders.hold("a")
    served.until(lambda: served.reserves("a") == 1, 30)
    load = served.load("a", clients=16)
    try:
        struck = served.strike("headrace-pool:pool", number)
        served.until(lambda: not served.cluster.replicas("headrace-pool:pool") & struck, 10)
        served.until(lambda: served.reserves("a") == 0, 10)
        load.goes_on(served, 50)
        served.until(lambda: served.cluster.replicas("headrace-pool:pool") - struck, 60)
        served.until(lambda: served.reserves("a") == 1, 60)
    finally:
        load.stop()
    assert load.failures == []
