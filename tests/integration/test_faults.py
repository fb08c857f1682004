"""What callers notice when a process dies or hangs: nothing, unless their own request killed it.
And what replicas notice when a caller leaves: its batch is dropped."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest
from served import (
    ANSWER_S,
    Later,
    Load,
    Server,
    get,
    http,
    listens,
    metric,
    patient,
    synthetic,
    total,
)

pytestmark = pytest.mark.integration

KILLER, HANGER, SERIAL_KILLER, LOSER = 666, 777, 888, 999
FATAL = {
    "base_ms": 200, "die_ids": [KILLER, SERIAL_KILLER], "hang_ids": [HANGER], "lose_ids": [LOSER],
}  # fmt: skip
MODEL = {
    **synthetic(options=FATAL),
    "replicas": {"count": 2, "hang_limit_s": 1.0},
    "crashes": {"tenant_budget": 100},  # whoever sends what is fatal sends all else here too
}
# A class of the operator's own. Its process takes some 300 MiB; while it leaks 500 more on a busy
# machine it must not count as hanging.
CLASS = {
    "runtime": "python",
    "source": f"{Path(__file__).parent}/classes:frail:Frail",
    "slo": {"latency_ms": 20_000},
    "replicas": {"count": 2, "num_cpus": 0, "hang_limit_s": 5.0, "memory_limit_mib": 800},
    "crashes": {"tenant_budget": 100},
}


@pytest.fixture(scope="module")
def server(serve) -> Server:
    calm = synthetic(options={"base_ms": 5})
    slow = synthetic(options={"base_ms": 2000}, batch={"max_size": 1})
    made: Server = serve(
        {"frail": MODEL, "class": CLASS, "calm": calm, "slow": slow}, gateway={"ingress": "haproxy"}
    )
    return made.start()


def ended(server: Server, end: str) -> float:
    return metric(server.metrics(), "headrace_batches_total", end=end, model="slow")


async def test_a_staged_batch_whose_caller_left_never_runs(server):
    body = {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}]}
    async with httpx.AsyncClient(base_url=server.gateway_urls()[0], timeout=ANSWER_S) as client:

        def ask() -> asyncio.Task[httpx.Response]:
            return asyncio.create_task(client.post("/v2/models/slow/infer", json=body))

        first = ask()
        await asyncio.to_thread(server.works_on, "slow", 1)
        left = ask()  # staged at once: nothing has been measured yet
        await asyncio.to_thread(server.works_on, "slow", 2)
        left.cancel()
        await asyncio.to_thread(server.until, lambda: ended(server, "dropped") == 1, 5)
        assert (await first).status_code == 200
        again = await ask()
    assert again.status_code == 200
    assert float(again.headers["x-queue-wait-ms"]) < 1000  # half of what the dropped one would take
    assert (ended(server, "answered"), ended(server, "unused")) == (2, 0)
    server.until(lambda: server.model_status("slow")["leases"] == 0, 10)
    assert server.model_status("slow")["drift"] == 0


class Watch:
    """The longest time in which none of a load's requests was answered."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._over = threading.Event()
        self._longest_s = 0.0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        answered, last = self._load.answered, time.monotonic()
        while not self._over.wait(0.01):
            now = time.monotonic()
            self._longest_s = max(self._longest_s, now - last)
            if self._load.answered != answered:
                answered, last = self._load.answered, now

    def end(self) -> float:
        self._over.set()
        self._thread.join()
        return self._longest_s


def until_whole(server: Server, without: set[int] = frozenset(), model: str = "frail") -> None:
    """Two replicas of the model run, none of `without`, and hold nothing.

    Status is up to a second old, so the processes are asked as well.
    """
    whole = {"replicas_ready": 2, "leases": 0, "drift": 0, "waiting_rows": 0}
    server.until(lambda: len(server.replicas(model) - without) == 2, 30)
    server.until(lambda: whole.items() <= server.model_status(model).items(), 30)


def crowd(server: Server, culprit: int, innocents: int = 12) -> tuple[Later, list[Later]]:
    """Many at once, so that the culprit shares a batch."""
    asked = [
        Later(lambda n=n: server.infer("frail", [culprit if n == 0 else n, 1]))
        for n in range(innocents + 1)
    ]
    return asked[0], asked[1:]


@pytest.mark.parametrize("culprit", [KILLER, HANGER, LOSER])
def test_only_the_request_that_ends_its_replica_fails(server, culprit):
    before = server.replicas("frail")
    guilty, innocent = crowd(server, culprit)
    answers = [each.answer() for each in innocent]
    assert [a.status_code for a in answers] == [200] * len(answers)
    assert [total(a) for a in answers] == [n + 1 for n in range(1, len(answers) + 1)]
    assert guilty.answer().status_code == 422
    assert "retry-after" not in guilty.answer().headers
    assert ("the synthetic device is lost, and " in server.output) is (culprit == LOSER)
    server.until(lambda: server.replicas("frail") != before, 20)
    until_whole(server)


@pytest.mark.parametrize(
    ("what", "status", "logged"),
    [
        ("raise", 503, "Frail.predict raised KeyError"),
        ("lost", 503, "a row failed: Frail: predict returned 0 rows"),
        ("wide", 503, "a row failed: Frail: row 0 of 'letters' has shape [1]"),
        ("words", 503, "a row failed: Frail: predict returned <U5 for 'letters'"),
        ("own", 503, "a row failed: its own reason"),
        ("nan", 500, ""),
        pytest.param("exit", 422, "no connection", marks=pytest.mark.chaos),
        ("leak", 422, "800 allowed (memory_limit_mib)"),
        pytest.param("sysexit", 422, "Frail.predict ended the process", marks=pytest.mark.chaos),
        pytest.param("hang", 422, "a batch hangs", marks=pytest.mark.chaos),
    ],
)
def test_only_the_row_at_which_a_class_fails_fails(server, what, status, logged):
    before, said = server.replicas("class"), len(server.output)
    url = f"{server.url}/v1/models/class:predict"

    def ask(text: str) -> Later:
        return Later(lambda: http.post(url, json={"instances": [text]}, timeout=ANSWER_S))

    innocent = {n: ask("x" * n) for n in range(1, 5)}
    guilty = ask(what)
    innocent |= {n: ask("x" * n) for n in range(5, 13)}
    found = {n: each.answer().json() for n, each in innocent.items()}
    assert found == {n: {"predictions": [n]} for n in innocent}
    assert guilty.answer().status_code == status, guilty.answer().text
    assert "secret" not in guilty.answer().text
    server.until(lambda: logged in server.output[said:], 5)
    if status == 422:
        server.until(lambda: server.replicas("class") != before, 60)
        until_whole(server, model="class")
    else:
        assert server.replicas("class") == before


def lost_replicas(server: Server) -> set[str]:
    return set(re.findall(r"replica (\w+) lost \d+ leases", server.output))


def test_a_row_that_ends_replicas_ends_two_however_often_it_is_sent(server):
    until_whole(server)
    before = lost_replicas(server)
    with server.load("frail", clients=4) as load:
        load.goes_on(server)
        began, watch = time.monotonic(), Watch(load)
        answers = [server.infer("frail", [SERIAL_KILLER, 1]) for _ in range(8)]
        answered_s = time.monotonic() - began
        load.goes_on(server, 100)
        longest_s = watch.end()
    until_whole(server)
    print(f"longest gap of the others {longest_s:.2f} s; eight answers after {answered_s:.1f} s")
    assert [each.status_code for each in answers] == [422] * 8
    assert load.failures == []
    assert len(lost_replicas(server) - before) == 2
    assert longest_s < patient(1.0)


def test_a_killed_replica_loses_no_request(server):
    killed = min(server.replicas("frail"))
    with server.load("frail", clients=8) as load:
        load.goes_on(server)
        psutil.Process(killed).kill()
        server.until(lambda: len(server.replicas("frail") - {killed}) == 2, 30)
        load.goes_on(server)
    assert load.failures == []
    assert load.answered > 20
    until_whole(server, {killed})


def test_the_only_replica_killed_under_load_delays_and_loses_nothing(server):
    (killed,) = server.replicas("calm")
    with server.load("calm") as load:
        load.goes_on(server)
        psutil.Process(killed).kill()
        server.until(lambda: bool(server.replicas("calm") - {killed}), 30)
        load.goes_on(server)
    assert load.failures == []


def test_a_stopped_gateway_and_a_stopped_replica_are_replaced(server):
    (gateway,) = server.named("ray::ServeReplica:gateway")
    replica = psutil.Process(min(server.replicas("frail")))
    began = time.monotonic()
    waits: dict[str, float] = {}

    def until_all(found: dict[str, Callable[[], bool]]) -> None:
        def look() -> bool:
            for what, has_come in found.items():
                if what not in waits and has_come():
                    waits[what] = round(time.monotonic() - began, 1)
            return found.keys() <= waits.keys()

        server.until(look, 40)

    replica.suspend()
    gateway.suspend()
    until_all(
        {
            "the gateway has ended": lambda: not is_there(gateway),
            "a gateway answers": lambda: status_of(server, 1.0) == 200,
            "the replica has ended": lambda: not is_there(replica),
            "two replicas run": lambda: len(server.replicas("frail") - {replica.pid}) == 2,
        }
    )
    print(waits)
    assert waits["the gateway has ended"] < patient(8)
    assert waits["the replica has ended"] < patient(8)
    for each in (gateway, replica):  # found by its own watchdog, not by Serve's slower checks
        assert f"process {each.pid} has stood still for " in server.output
    until_whole(server, {replica.pid})


def is_there(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_killed_anchor_is_replaced_unnoticed(server):
    title = "ray::ServeReplica:model-calm:anchor"
    (anchor,) = server.named(title)
    replicas = server.replicas("calm")
    with server.load("calm") as load:
        anchor.kill()
        time.sleep(6.0)  # longer than the lease that the anchor kept
        server.until(lambda: server.named(title) != [], 20)
        server.until(lambda: get(f"{server.url}/v2/models/calm/ready") == 200, 20)
    assert load.failures == []
    assert server.replicas("calm") == replicas


def test_models_stay_served_without_the_registry_and_status_recovers(server):
    registry = server.named("ray::RegistryActor")[0]
    with server.load("calm") as load:
        registry.kill()
        server.until(lambda: server.named("ray::RegistryActor") != [], 20)
        load.goes_on(server, 100)
        server.until(lambda: server.model_status("calm")["state"] == "ready", 20)
    assert load.failures == []
    # Models are found again one by one.
    server.until(lambda: all(m["version"] for m in server.status()["models"]), 20)


def test_a_killed_gateway_is_back_within_seconds(server):
    gateway = server.named("ray::ServeReplica:gateway")[0]
    gateway.kill()
    began = time.monotonic()
    # The first may still reach the gateway that is just dying, and be lost with it.
    server.until(lambda: status_of(server) == 200, 30)
    assert time.monotonic() - began < patient(15)
    assert total(server.infer("calm", [1, 2])) == 3
    assert server.infer("nobody", [1]).status_code == 404
    until_whole(server)


def haproxies(server: Server) -> set[int]:
    """The one that Serve started, and a stand-in."""
    return {each.pid for each in server.called("haproxy")}


def status_of(server: Server, within_s: float = ANSWER_S) -> int:
    """Of a request; 0: nobody answers."""
    try:
        return server.infer("calm", [1, 2], within_s=within_s).status_code
    except httpx.HTTPError:
        return 0


# Serve looks at HAProxy's manager more often than at HAProxy, for whose successor it takes 30 s.
@pytest.mark.parametrize(
    ("title", "successors"),
    [
        pytest.param("ray::HAProxyManager", 2, marks=pytest.mark.chaos, id="its manager"),
        pytest.param("", 1, id="itself"),
    ],
)
def test_when_haproxy_is_killed_the_port_is_back_within_two_seconds(server, title, successors):
    server.until(lambda: len(haproxies(server)) == 1, 30)
    time.sleep(1.0)  # until its watcher has seen it serve
    before = haproxies(server)
    killed = server.named(title)[0] if title else psutil.Process(max(before))
    killed.kill()
    last, longest_s, stood_in = time.monotonic(), 0.0, set[int]()
    statuses: set[int] = set()

    def serves_as_before() -> bool:
        nonlocal last, longest_s
        status = status_of(server)
        statuses.add(status)
        if status == 200:
            last, longest_s = time.monotonic(), max(longest_s, time.monotonic() - last)
        stood_in.update(haproxies(server) - before)
        return status == 200 and len(stood_in) >= successors and len(haproxies(server)) == 1

    began = time.monotonic()
    server.until(serves_as_before, 90)
    whole_s = time.monotonic() - began
    print(f"longest without an answer {longest_s:.2f} s; the last of them after {whole_s:.0f} s")
    assert statuses <= {0, 200}
    assert longest_s < patient(2.0)


def test_the_host_stops_when_its_terminal_is_gone(server):
    server.process.send_signal(signal.SIGKILL)
    server.wait()
    assert server.remaining(30) == []
    assert not listens(server.port)
