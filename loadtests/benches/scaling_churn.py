"""Bench: does any request fail while models are scaled up and down a hundred times?

`python -m loadtests.benches.scaling_churn [--changes 100]`: two gateways, a model that runs batches
and one that streams, both under a closed loop. `headrace scale` changes the number of replicas of
each in turn. Every fifth time that the batch model shrinks, one of its replicas is killed while
replicas drain: one that drains, or the one that stays (another process then replaces it). A batch
takes `BATCH_MS`, longer than the status is old, so that a kill hits a running batch. A dead
replica's batch runs again elsewhere; a stream that has begun is not moved, so no replica of the
streaming model is killed. Each client keeps one connection. A stream is complete with its last
event.

Promises: no request and no stream fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from loadtests.benches.launched import RunningServer
from loadtests.benches.processes import marked
from loadtests.benches.runner import Bench, BenchRun, Option, Options, Runs, say
from loadtests.benches.server import Settings, command_line, headrace
from loadtests.results.report_table import BenchVerdict, Table, at_most

DEVICE, CHAT = "device", "chat"
KEY = "hr_" + secrets.token_urlsafe(32)
KEY_HASH = "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()
HOME = Path("out/bench/churn")
MOST = {DEVICE: 3, CHAT: 2}
CLIENTS = {DEVICE: 6, CHAT: 3}
ANSWER_S, SETTLES_S = 60.0, 120.0
KILLS_EVERY = 5
BATCH_MS = 1500
LOOKS_S = 0.1


@dataclass(slots=True)
class Churn:
    """The result of a run."""

    changes: int = 0
    killed: int = 0  # replicas that were killed while some drained
    stayed: int = 0  # of these, replicas that did not drain themselves
    answered: int = 0
    streamed: int = 0
    longest_s: float = 0.0
    failures: list[str] = field(default_factory=list)
    settled_s: list[float] = field(default_factory=list)  # from command to that number of processes

    @property
    def failed(self) -> int:
        return len(self.failures)

    @property
    def settle_s(self) -> float:
        """The median of `settled_s`."""
        return sorted(self.settled_s)[len(self.settled_s) // 2] if self.settled_s else 0.0


def settings() -> Settings:
    def model(name: str, **more: Any) -> dict[str, Any]:
        replicas = {"min": 1, "max": MOST[name], "num_cpus": 0.1}
        return {"runtime": "synthetic", "profile_s": 0, "replicas": replicas, **more}

    return {
        "models": {
            DEVICE: model(DEVICE, options={"base_ms": BATCH_MS}, slo={"latency_ms": 20_000}),
            CHAT: model(
                CHAT,
                task="generate",
                lengths={"max": 1000},
                options={"base_ms": 20},
                slo={"ttft_ms": 20_000},
            ),
        },
        "gateway": {"replicas": 2},
        "operators": {"keys": [KEY_HASH]},
    }


class Clients:
    """A closed loop that runs until it is stopped; every incomplete answer is a failure."""

    def __init__(self, url: str, churn: Churn) -> None:
        self._url, self._churn = url, churn
        self._over = threading.Event()
        asks = {DEVICE: self._infer, CHAT: self._chat}
        self._threads = [
            threading.Thread(target=self._run, args=(asks[name],), daemon=True)
            for name, clients in CLIENTS.items()
            for _ in range(clients)
        ]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(ANSWER_S)

    def _run(self, ask: Callable[[httpx.Client], None]) -> None:
        with httpx.Client(timeout=ANSWER_S) as http:
            while not self._over.wait(0.005):
                began = time.monotonic()
                try:
                    ask(http)
                except (httpx.HTTPError, ValueError) as error:
                    self._churn.failures.append(f"{type(error).__name__}: {error}")
                self._churn.longest_s = max(self._churn.longest_s, time.monotonic() - began)

    def _infer(self, http: httpx.Client) -> None:
        ids = {"name": "ids", "datatype": "INT64", "shape": [1, 3], "data": [1, 2, 3]}
        answer = http.post(f"{self._url}/v2/models/{DEVICE}/infer", json={"inputs": [ids]})
        if answer.status_code != 200 or answer.json()["outputs"][0]["data"] != [6.0]:
            raise ValueError(f"{answer.status_code} {answer.text[:200]}")
        self._churn.answered += 1

    def _chat(self, http: httpx.Client) -> None:
        said = [{"role": "user", "content": "hello there"}]
        body = {"model": CHAT, "messages": said, "max_tokens": 20, "stream": True}
        with http.stream("POST", f"{self._url}/v1/chat/completions", json=body) as answer:
            events = [line for line in answer.iter_lines() if line]
        whole = answer.status_code == 200 and events and events[-1] == "data: [DONE]"
        if not whole or any('"error"' in event for event in events):
            raise ValueError(f"{answer.status_code} {events[-2:]}")
        self._churn.streamed += 1


def replicas(running: RunningServer, model: str) -> list[psutil.Process]:
    title = f"ray::ServeReplica:model-{model}:model"
    found = []
    for process in marked(running.mark):
        with contextlib.suppress(psutil.Error):
            if " ".join(process.cmdline()).startswith(title):
                found.append(process)
    return found


def scale(running: RunningServer, model: str, number: int) -> subprocess.Popen[bytes]:
    """Starts `headrace scale` and returns at once."""
    port = running.url.rpartition(":")[2]
    environ = {**os.environ, "XDG_STATE_HOME": str((HOME / "state").absolute())}
    command = [*command_line(), "scale", model, str(number), "--port", port]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environ)


def churned(changes: int) -> Churn:
    churn = Churn()
    numbers = {DEVICE: 1, CHAT: 1}
    with headrace(settings(), name="churn", home=HOME) as running, Clients(running.url, churn):
        while churn.changes < changes:
            model = (DEVICE, CHAT)[churn.changes % 2]
            grows = numbers[model] == 1
            numbers[model] = MOST[model] if grows else 1
            kills = model == DEVICE and not grows and churn.changes % (4 * KILLS_EVERY) == 2
            began = time.monotonic()
            _change(running, churn, model, numbers[model], kills)
            churn.settled_s.append(time.monotonic() - began)
            churn.changes += 1
            if churn.changes % 10 == 0:
                say(f"{churn.changes} changes, {churn.killed} killed, {churn.failed} failed")
    return churn


def _change(running: RunningServer, churn: Churn, model: str, number: int, kills: bool) -> None:
    """Changes a model's number of replicas. Raises TimeoutError, or CalledProcessError if the
    command failed."""
    before = replicas(running, model)
    command = scale(running, model, number)
    if kills:
        _until_draining(running, model)
        killed = _kill(before)
    if command.wait(SETTLES_S):
        raise subprocess.CalledProcessError(command.returncode, command.args)
    until_there(running, model, number)
    if kills and killed:
        churn.killed += 1
        churn.stayed += not set(replicas(running, model)) <= set(before)


def _kill(processes: list[psutil.Process]) -> bool:
    """Kills the newest process that still runs; returns whether there was one."""
    for process in sorted(processes, key=psutil.Process.create_time, reverse=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
            return True
    return False


def _until_draining(running: RunningServer, model: str) -> None:
    """Raises TimeoutError."""
    end = time.monotonic() + SETTLES_S
    while not _draining(running, model):
        if time.monotonic() > end:
            raise TimeoutError(f"no replica of {model} began to drain")
        time.sleep(LOOKS_S / 5)


def _draining(running: RunningServer, model: str) -> int:
    """Draining replicas, from `headrace status`."""
    headers = {"Authorization": f"Bearer {KEY}"}
    status = httpx.get(f"{running.url}/admin/status", headers=headers, timeout=ANSWER_S).json()
    groups = status["scaling"]["models"][model]["groups"]
    return sum(group["draining"] for group in groups)


def until_there(running: RunningServer, model: str, number: int) -> None:
    """Raises TimeoutError."""
    end = time.monotonic() + SETTLES_S
    while len(replicas(running, model)) != number:
        if time.monotonic() > end:
            raise TimeoutError(f"{model} did not get to {number} replicas")
        time.sleep(LOOKS_S)


# ---- the report ---------------------------------------------------------------------------------


def runs(options: Options) -> Iterator[BenchRun]:
    churn = churned(options.changes)
    say(f"{churn.changes} changes, {churn.killed} killed: {churn.answered} answered, "
        f"{churn.streamed} streams, {churn.failed} failed {churn.failures[:3]}; settled after "
        f"{churn.settle_s:.1f} s, longest answer {churn.longest_s:.1f} s")  # fmt: skip
    yield BenchRun("churn", churn)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    (churn,) = done.results
    headers = ("changes", "killed while some drained", "of these to stay", "answered", "streams",
               "failed", "settled after s (median)", "longest answer s")  # fmt: skip
    row = (churn.changes, churn.killed, churn.stayed, churn.answered, churn.streamed, churn.failed,
           churn.settle_s, churn.longest_s)  # fmt: skip
    yield Table("Two gateways, one model of batches and one that streams", headers, (row,))


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    (churn,) = done.results
    yield at_most("requests and streams that failed", churn.failed, 0)


BENCH = Bench(
    name="scaling_churn",
    about=__doc__,
    title="A hundred ups and downs under load",
    options={"changes": Option(100)},
    measure=runs,
    tables=tables,
    bars=bars,
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
