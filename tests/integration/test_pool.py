"""A replica of the shared pool on a real cluster: becomes what it is told, answers while a model's
own replica is away, leaves and dies without a failed request. Who tells it is the test."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from ray_cluster import HERE, Cluster, until
from served import ANSWER_S, Load, adder, http, metric, patient, synthetic

pytestmark = pytest.mark.integration

MIB = 1 << 20
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
MODELS["talks"] = {
    "runtime": "synthetic", "task": "generate", "lengths": {"max": 1000},
    # Its own replica takes far longer to come back than the pool's takes to wake.
    "options": {"base_ms": 20, "load_s": 2, "wake_s": 0.1, "weights_mib": 40, "cache_mib": 40},
    "slo": {"ttft_ms": 2000, "timeout_ms": 60_000},
    "replicas": {"num_cpus": 0.1},
}  # fmt: skip
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

    def kept(self) -> dict[str, dict[str, Any]]:
        """What is in its memory and serves nobody, by model."""
        return {each["model"]: each for report in self.ask(None) for each in report["kept"]}

    def held(self) -> set[str]:
        """Models that the pool serves, as its replicas last said."""
        reports = self.ask(None)
        return {each["model"] for report in reports for each in report["residents"]
                if each["serves"]}  # fmt: skip

    def resident(self, model: str) -> dict[str, Any]:
        found: dict[str, Any] = next(
            each for report in self.ask(None) for each in report["residents"]
            if each["model"] == model
        )  # fmt: skip
        return found

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


class Chat(threading.Thread):
    """A stream of so many tokens, read by a thread of its own."""

    def __init__(self, served: Served, tokens: int) -> None:
        super().__init__()
        self._url, self.tokens = f"{served.cluster.url}/v1/chat/completions", tokens
        self.heard: list[str] = []
        self.start()

    def run(self) -> None:
        said = [{"role": "user", "content": "go on"}]
        asked = {"model": "talks", "messages": said, "max_tokens": self.tokens, "stream": True}
        with httpx.stream("POST", self._url, json=asked, timeout=ANSWER_S) as answer:
            for line in answer.iter_lines():
                self.heard += [line] if line else []

    @property
    def words(self) -> int:
        return sum('" w' in line for line in self.heard)

    def is_whole(self) -> bool:
        self.join(patient(60))
        return self.words == self.tokens and self.heard[-1] == "data: [DONE]"


def test_it_swaps_a_model_of_batches_and_one_that_generates_and_no_stream_is_cut(
    served: Served,
) -> None:
    """There is room for either: what streams ends before the other comes, sleeps, and wakes."""
    served.orders.hold("talks")
    served.until(lambda: served.reserves("talks") == 1, 30)
    (pid,) = served.cluster.replicas("headrace-pool:pool")
    own = served.strike("model-talks:model", signal.SIGKILL)
    chat = Chat(served, 200)  # 4 s
    served.until(lambda: chat.words > 5, 30)
    load = served.load("b")
    try:
        served.orders.ask(["b"])
        served.until(lambda: "talks" in served.orders.kept(), 30)
        assert chat.is_whole(), chat.heard[-3:]
        served.until(lambda: served.orders.held() == {"b"}, 30)
        load.goes_on(served, 50)
        asleep = served.orders.kept()["talks"]
        assert asleep["size_bytes"] < 80 * MIB, "its cache is gone"
        served.until(lambda: bool(served.cluster.replicas("model-talks:model") - own), 60)
        began = time.monotonic()
        served.orders.hold("talks")
        woke_s = time.monotonic() - began
        assert 0.05 < served.orders.resident("talks")["wake_s"] < 1.0, "it was not loaded anew"
        served.until(lambda: served.reserves("talks") == 1, 30)
        assert Chat(served, 5).is_whole()
        load.goes_on(served, 50)
    finally:
        load.stop()
    assert load.failures == []
    assert served.cluster.replicas("headrace-pool:pool") == {pid}
    print(f"back after {woke_s:.2f} s; a load takes {served.orders.resident('talks')['load_s']}")


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
