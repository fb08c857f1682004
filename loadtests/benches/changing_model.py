"""A model that is changed again and again, well and badly, and callers who ask it meanwhile.

`headrace apply` gives it one version after the other, each with a rollout: copies of requests
first, then two steps with requests of its own. Every third version is good; the others cannot be
loaded, cost too much, are slow, wrong, answer NaN, or end their process, and must be taken back by
themselves. Its callers ask at a fixed rate, whether answers come or not. Times are those of
`time.monotonic`.
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
TAKEN_BACK = ("aborted", "cannot start")  # what `apply` says of a bad one; else it failed itself


def kind_of(change: int) -> str:
    """Every third version is good; the others take turns."""
    if change % 3 == 0:
        return GOOD
    return list(BAD)[(change - change // 3 - 1) % len(BAD)]


def version(change: int) -> Settings:
    """The model's settings after so many changes; no two that follow each other are the same."""
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
    """What the version that cannot be loaded names."""
    SETTINGS_DIR.mkdir(parents=True, exist_ok=True)
    (SETTINGS_DIR / RUBBISH).write_bytes(b"no graph")


# ---- those who ask ------------------------------------------------------------------------------


class Callers:
    """Ask at a fixed rate, `LOAD` of what the model can do, until they are told to stop."""

    def __init__(self, url: str, told: Callable[[LoggedRequest], object]) -> None:
        self._url, self._told = f"{url}/v2/models/{MODEL}/infer", told
        self._rate = LOAD * REPLICAS / (SERVICE_MS / 1000)
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
    """decided: changes that ended as they should, each after so many seconds."""

    made: int = 0
    decided: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MadeChange:
    """`ended`: as it should, good ones made and bad ones taken back; `said`: what `apply` wrote."""

    number: int
    kind: str
    began_s: float
    ended_s: float
    ended: bool
    said: str


def change(running: RunningServer, number: int, *, file: Path, home: Path) -> MadeChange:
    """Lays the version over the settings in `file` and applies them. A change that has not ended
    after CHANGE_S, or for whose end the version was no reason, did not end as it should."""
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
    """Changes that did not end as they should, of the good or of the bad ones."""
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
