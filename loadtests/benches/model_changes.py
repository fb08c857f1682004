"""Bench: what do callers notice while a model is changed again and again, well and badly?

`python -m loadtests.benches.model_changes [--changes 27]`: two gateways, one model of `REPLICAS`
replicas that run a request at a time, asked at a fixed rate, `LOAD` of what they can do, whether
answers come or not. `headrace apply` gives it one version after the other, each with a rollout:
copies of requests first, then two steps with requests of its own. Every third version is good; the
others cannot be loaded, cost too much, are slow, wrong, answer NaN, or end their process, and must
be taken back by themselves.

Promises: no request failed or was answered wrongly; every good change was made, every bad one taken
back.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import yaml

from loadtests.benches.launched import RunningServer
from loadtests.benches.runner import Bench, BenchRun, Option, Options, Runs, say
from loadtests.benches.server import SETTINGS_DIR, Settings, command_line, headrace
from loadtests.results.report_table import BenchVerdict, Table, at_most

MODEL = "changing"
REPLICAS, SERVICE_MS, LOAD = 2, 50, 0.5
HOME = Path("out/bench/changes")
RUBBISH = "no-graph.onnx"
ANSWER_S, CHANGE_S, PAUSE_S = 60.0, 300.0, 1.0
ROLLOUT = {
    "steps_percent": [20, 50], "hold_s": 1, "least_requests": 20, "shadow_percent": 50,
    "agreement": {"max_abs": 0.1},
}  # fmt: skip
ASKED = [1, 2, 3]
MEASURED = {"profile_s": 1}
BAD: dict[str, Settings] = {
    "cannot be loaded": {"runtime": "onnxruntime", "source": RUBBISH, "options": {}},
    "costs too much": {**MEASURED, "options": {"base_ms": 3 * SERVICE_MS}},
    "slow": {"profile_s": 0, "options": {"base_ms": 3 * SERVICE_MS}},
    "wrong": {**MEASURED, "options": {"base_ms": SERVICE_MS, "answer_bias": 1}},
    "NaN": {**MEASURED, "options": {"base_ms": SERVICE_MS, "nan_ids": ASKED[:1]}},
    "ends its process": {**MEASURED, "options": {"base_ms": SERVICE_MS, "die_ids": ASKED[:1]}},
}
GOOD = "good"


@dataclass(slots=True)
class KindOfChange:
    """decided: changes that ended as they should, each after so many seconds."""

    made: int = 0
    decided: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Changes:
    """longest_s: that an answer took while the model changed, quiet_s: and while it did not."""

    kinds: dict[str, KindOfChange] = field(default_factory=dict)
    asked: int = 0
    longest_s: float = 0.0
    quiet_s: float = 0.0
    failures: list[str] = field(default_factory=list)

    def undecided(self, *, good: bool) -> int:
        """Changes that did not end as they should, of the good or of the bad ones."""
        kinds = [kind for name, kind in self.kinds.items() if (name == GOOD) is good]
        return sum(kind.made - len(kind.decided) for kind in kinds)


def kind_of(change: int) -> str:
    """Every third version is good; the others take turns."""
    if change % 3 == 0:
        return GOOD
    return list(BAD)[(change - change // 3 - 1) % len(BAD)]


def settings(change: int) -> Settings:
    """Of the model after so many changes; no two that follow each other are the same."""
    good = {**MEASURED, "options": {"base_ms": SERVICE_MS + change % 5 / 10}}
    model: dict[str, Any] = {
        "runtime": "synthetic",
        "slo": {"latency_ms": 20_000},
        "batch": {"max_size": 1},
        "replicas": {"count": REPLICAS},
        "rollout": ROLLOUT,
        **BAD.get(kind_of(change), good),
    }
    return {"models": {MODEL: model}, "gateway": {"replicas": 2}}


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
        ids = {"name": "ids", "datatype": "INT64", "shape": [1, len(ASKED)], "data": ASKED}
        began, changing = time.monotonic(), self.changing
        self._found.asked += 1
        try:
            answer = await http.post(self._url, json={"inputs": [ids]})
            if answer.status_code != 200 or answer.json()["outputs"][0]["data"] != [sum(ASKED)]:
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
        say(f"{change} of {number} changes ({kind_of(change)}): "
            f"{len(found.failures)} of {found.asked} failed, "
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
    name = kind_of(change)
    kind = found.kinds.setdefault(name, KindOfChange())
    kind.made += 1
    if (said.returncode == 0) is (name == GOOD):
        kind.decided.append(time.monotonic() - began)
    else:
        say(f"change {change} ({name}) ended with {said.returncode}: {said.stderr.strip()}")


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


def tables(done: Runs, options: Options) -> Iterator[Table]:
    (found,) = done.results
    rows = tuple(
        (name, kind.made, len(kind.decided), median(kind.decided or [nan]),
         max(kind.decided, default=nan))
        for name, kind in found.kinds.items()
    )  # fmt: skip
    yield Table(
        f"{REPLICAS} replicas, asked at {LOAD:.0%} of what they can do",
        ("versions", "number", "ended as they should", "after s (median)", "after s (most)"),
        rows,
    )
    yield Table(
        "What callers noticed",
        ("requests", "failed or wrong", "longest answer while it changed s", "and else s"),
        ((found.asked, len(found.failures), found.longest_s, found.quiet_s),),
    )


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    (found,) = done.results
    yield at_most("requests that failed or were answered wrongly", len(found.failures), 0)
    yield at_most("good changes that were not made", found.undecided(good=True), 0)
    yield at_most("bad changes that were not taken back", found.undecided(good=False), 0)


BENCH = Bench(
    name="model_changes",
    about=__doc__,
    title="A model changed under load",
    options={"changes": Option(27)},
    measure=runs,
    tables=tables,
    bars=bars,
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
