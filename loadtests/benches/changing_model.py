"""Rolls out one version of a model after another, good and bad ones, while callers send requests.

`headrace apply` rolls out each version: first the canary gets copies of requests, then requests of
its own in two steps. Every third version is good. The others cannot be loaded, cost too much, are
slow, answer wrongly, answer NaN, or end their process; their rollouts must abort by themselves.
Callers send requests at a fixed rate (open loop). Times are those of `time.monotonic`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import yaml

from loadtests.benches.launched import RunningServer
from loadtests.benches.request_log import LoggedRequest
from loadtests.benches.runner import say
from loadtests.benches.server import SETTINGS_DIR, Settings, command_line
from loadtests.results.report_table import Table

MODEL = "changing"
REPLICAS, SERVICE_MS, LOAD = 2, 50, 0.5
RUBBISH = "no-graph.onnx"
ANSWER_S, CHANGE_S = 60.0, 300.0
ROLLOUT = {
    "steps_percent": [20, 50], "hold_s": 1, "min_requests": 20, "shadow_percent": 50,
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
TAKEN_BACK = ("aborted", "cannot start")  # `apply` says so of a bad version; else `apply` failed


def kind_of(change: int) -> str:
    """The kind of the version that a change rolls out: every third is good, bad kinds in turn."""
    if change % 3 == 0:
        return GOOD
    return list(BAD)[(change - change // 3 - 1) % len(BAD)]


def version(change: int) -> Settings:
    """The model's settings after so many changes; two in succession always differ."""
    good = {**MEASURED, "options": {"base_ms": SERVICE_MS + change % 5 / 10}}
    return {
        "runtime": "synthetic",
        "slo": {"latency_ms": 20_000},
        "batch": {"max_size": 1},
        "replicas": {"count": REPLICAS},
        "rollout": ROLLOUT,
        **BAD.get(kind_of(change), good),
    }


def write_rubbish() -> None:
    """Writes the source of the version that cannot be loaded."""
    SETTINGS_DIR.mkdir(parents=True, exist_ok=True)
    (SETTINGS_DIR / RUBBISH).write_bytes(b"no graph")


# ---- callers ------------------------------------------------------------------------------------


class Callers:
    """Sends requests at a fixed rate (`LOAD` of the model's capacity) until `stop` is called.

    Each request's outcome is given to `told`.
    """

    def __init__(self, url: str, told: Callable[[LoggedRequest], object]) -> None:
        self._url, self._told = f"{url}/v2/models/{MODEL}/infer", told
        self._rate = LOAD * REPLICAS / (SERVICE_MS / 1000)
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Returns after `stop`, once every request has an outcome."""
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
        began_s, why, refused = time.monotonic(), "", False
        try:
            answer = await http.post(self._url, json={"inputs": [ids]})
            if answer.status_code != 200 or answer.json()["outputs"][0]["data"] != [sum(ASKED)]:
                why = f"{answer.status_code} {answer.text[:200]}"
                refused = answer.status_code in (429, 503) and "retry-after" in answer.headers
        except httpx.HTTPError as error:
            why = f"{type(error).__name__}: {error}"
        self._told(LoggedRequest(MODEL, began_s, time.monotonic(), why, refused))


# ---- changes ------------------------------------------------------------------------------------


@dataclass(slots=True)
class KindOfChange:
    """The changes to versions of one kind."""

    made: int = 0
    decided: list[float] = field(default_factory=list)  # seconds of those that ended as they should


@dataclass(frozen=True, slots=True)
class MadeChange:
    """One change, and how it ended."""

    number: int
    kind: str
    began_s: float
    ended_s: float
    ended: bool  # as it should: a good version was promoted, a bad one was not
    said: str  # the output of `apply`


def change(running: RunningServer, number: int, *, file: Path, home: Path) -> MadeChange:
    """Writes the version into the settings in `file` and applies them.

    A change did not end as it should if it has not ended after CHANGE_S, or if `apply` failed for a
    reason other than the version.
    """
    settings: dict[str, Any] = yaml.safe_load(file.read_text())
    settings["models"][MODEL] = version(number)
    file.write_text(yaml.safe_dump(settings, sort_keys=False))
    began_s, name = time.monotonic(), kind_of(number)
    code, said = _apply(running, file, home)
    ended = code == 0 if name == GOOD else bool(code) and any(word in said for word in TAKEN_BACK)
    if not ended:
        say(f"change {number} ({name}) ended with {code}: {said}")
    return MadeChange(number, name, began_s, time.monotonic(), ended, said)


def _apply(running: RunningServer, file: Path, home: Path) -> tuple[int | None, str]:
    port = running.url.rpartition(":")[2]
    environ = {**os.environ, "XDG_STATE_HOME": str((home / "state").absolute())}
    command = [*command_line(), "apply", str(file), "--port", port]
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, check=False, timeout=CHANGE_S
        )
    except subprocess.TimeoutExpired:
        return None, f"not ended after {CHANGE_S:g} s"
    return done.returncode, (done.stderr or done.stdout).strip()[-1000:]


def by_kind(made: Sequence[MadeChange]) -> dict[str, KindOfChange]:
    kinds: dict[str, KindOfChange] = {}
    for each in made:
        kind = kinds.setdefault(each.kind, KindOfChange())
        kind.made += 1
        if each.ended:
            kind.decided.append(each.ended_s - each.began_s)
    return kinds


def undecided(made: Sequence[MadeChange], *, good: bool) -> int:
    """The number of changes to good (or bad) versions that did not end as they should."""
    return sum(not each.ended for each in made if (each.kind == GOOD) is good)


def table_of_changes(kinds: Mapping[str, KindOfChange]) -> Table:
    rows = tuple(
        (name, kind.made, len(kind.decided), median(kind.decided or [nan]),
         max(kind.decided, default=nan))
        for name, kind in kinds.items()
    )  # fmt: skip
    return Table(
        f"{REPLICAS} replicas, asked at {LOAD:.0%} of what they can do",
        ("versions", "number", "ended as they should", "after s (median)", "after s (most)"),
        rows,
    )
