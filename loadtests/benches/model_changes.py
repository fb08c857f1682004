"""Bench: what do callers notice while a model of several replicas is changed, well and badly?

`python -m loadtests.benches.model_changes [--changes 12]`: two gateways, one model of `REPLICAS`
replicas that run a request at a time, asked at a fixed rate, `LOAD` of what they can do, whether
answers come or not. `headrace apply` changes the model again and again: to other settings, and
every third time to an artifact that cannot be loaded, which it must take back by itself.

Promises: no request failed; every good change was made, every bad one taken back.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from loadtests.benches.launched import RunningServer
from loadtests.benches.runner import Bench, BenchRun, Option, Options, Runs, say
from loadtests.benches.server import SETTINGS_DIR, Settings, command_line, headrace
from loadtests.results.report_table import BenchVerdict, Table, at_most

MODEL = "changing"
REPLICAS, SERVICE_MS, LOAD = 4, 100, 0.65
HOME = Path("out/bench/changes")
RUBBISH = "no-graph.onnx"
BAD_EVERY = 3
ANSWER_S, CHANGE_S, PAUSE_S = 60.0, 180.0, 2.0


@dataclass(slots=True)
class Changes:
    """changed, taken_back: changes that ended as they should; took_s: of each change of either
    kind. longest_s: that an answer took while a model changed, quiet_s: and while none did."""

    good: int = 0
    bad: int = 0
    changed: int = 0
    taken_back: int = 0
    asked: int = 0
    longest_s: float = 0.0
    quiet_s: float = 0.0
    failures: list[str] = field(default_factory=list)
    change_s: list[float] = field(default_factory=list)
    detected_s: list[float] = field(default_factory=list)


def settings(change: int) -> Settings:
    """Of the model after so many changes; every `BAD_EVERY`th cannot be loaded."""
    model: dict[str, Any] = {
        "runtime": "synthetic",
        "profile_s": 0,
        "slo": {"latency_ms": 20_000},
        "batch": {"max_size": 1},
        "options": {"base_ms": SERVICE_MS + change % 5},
        "replicas": {"count": REPLICAS},
    }
    if is_bad(change):
        model |= {"runtime": "onnxruntime", "source": RUBBISH, "options": {}}
    return {"models": {MODEL: model}, "gateway": {"replicas": 2}}


def is_bad(change: int) -> bool:
    return change % BAD_EVERY == BAD_EVERY - 1


class Callers:
    """Ask at a fixed rate until they are told to stop."""

    def __init__(self, url: str, found: Changes) -> None:
        self._url, self._found = f"{url}/v2/models/{MODEL}/infer", found
        self._rate = LOAD * REPLICAS / (SERVICE_MS / 1000)
        self.changing = False
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Returns when every request has its outcome."""
        async with httpx.AsyncClient(timeout=ANSWER_S, limits=httpx.Limits()) as http:
            asked, due = set[asyncio.Task[None]](), time.monotonic()
            while not self._over.is_set():
                asked.add(task := asyncio.create_task(self._ask(http)))
                task.add_done_callback(asked.discard)
                due += 1 / self._rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            await asyncio.gather(*asked)

    def stop(self) -> None:
        self._over.set()

    async def _ask(self, http: httpx.AsyncClient) -> None:
        ids = {"name": "ids", "datatype": "INT64", "shape": [1, 3], "data": [1, 2, 3]}
        began, changing = time.monotonic(), self.changing
        self._found.asked += 1
        try:
            answer = await http.post(self._url, json={"inputs": [ids]})
            if answer.status_code != 200 or answer.json()["outputs"][0]["data"] != [6.0]:
                self._found.failures.append(f"{answer.status_code} {answer.text[:200]}")
        except httpx.HTTPError as error:
            self._found.failures.append(f"{type(error).__name__}: {error}")
        took_s = time.monotonic() - began
        if changing or self.changing:
            self._found.longest_s = max(self._found.longest_s, took_s)
        else:
            self._found.quiet_s = max(self._found.quiet_s, took_s)


def changes(number: int) -> Changes:
    found = Changes()
    SETTINGS_DIR.mkdir(parents=True, exist_ok=True)
    (SETTINGS_DIR / RUBBISH).write_bytes(b"no graph")
    with headrace(settings(0), name=MODEL, home=HOME) as running:
        asyncio.run(_under_load(running, found, number))
    return found


async def _under_load(running: RunningServer, found: Changes, number: int) -> None:
    callers = Callers(running.url, found)
    asking = asyncio.create_task(callers.run())
    for change in range(1, number + 1):
        await asyncio.sleep(PAUSE_S)
        callers.changing = True
        await _change(running, found, change)
        callers.changing = False
        say(f"{change} of {number} changes: {len(found.failures)} of {found.asked} failed, "
            f"longest answer {found.longest_s:.2f} s")  # fmt: skip
    await asyncio.sleep(PAUSE_S)
    callers.stop()
    await asking


async def _change(running: RunningServer, found: Changes, change: int) -> None:
    """Raises TimeoutError."""
    file = SETTINGS_DIR / f"{MODEL}.yaml"
    gateway = yaml.safe_load(file.read_text())["gateway"]
    file.write_text(yaml.safe_dump(settings(change) | {"gateway": gateway}, sort_keys=False))
    began = time.monotonic()
    said = await asyncio.to_thread(_apply, running, file)
    code = said.returncode
    took_s = time.monotonic() - began
    if is_bad(change):
        found.bad += 1
        found.taken_back += code != 0
        found.detected_s.append(took_s)
    else:
        found.good += 1
        found.changed += code == 0
        if code:
            say(f"change {change} was not made: {said.stderr.strip()}")
        found.change_s.append(took_s)


def _apply(running: RunningServer, file: Path) -> subprocess.CompletedProcess[str]:
    port = running.url.rpartition(":")[2]
    environ = {**os.environ, "XDG_STATE_HOME": str((HOME / "state").absolute())}
    command = [*command_line(), "apply", str(file), "--port", port]
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False, timeout=CHANGE_S
    )


# ---- the report ---------------------------------------------------------------------------------


def runs(options: Options) -> Iterator[BenchRun]:
    yield BenchRun("changes", changes(options.changes))


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def tables(done: Runs, options: Options) -> Iterator[Table]:
    (found,) = done.results
    headers = ("good changes", "made", "in s (median)", "bad changes", "taken back",
               "in s (median)", "requests", "failed", "longest answer while it changed s",
               "and else s")  # fmt: skip
    row = (found.good, found.changed, median(found.change_s), found.bad, found.taken_back,
           median(found.detected_s), found.asked, len(found.failures), found.longest_s,
           found.quiet_s)  # fmt: skip
    yield Table(f"{REPLICAS} replicas, asked at {LOAD:.0%} of what they can do", headers, (row,))


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    (found,) = done.results
    yield at_most("requests that failed", len(found.failures), 0)
    yield at_most("good changes that were not made", found.good - found.changed, 0)
    yield at_most("bad changes that were not taken back", found.bad - found.taken_back, 0)


BENCH = Bench(
    name="model_changes",
    about=__doc__,
    title="A model changed under load",
    options={"changes": Option(12)},
    measure=runs,
    tables=tables,
    bars=bars,
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
