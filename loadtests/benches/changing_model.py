"""Rolls out one version of a model after another, good and bad ones.

`headrace apply` rolls out each version: first the canary gets copies of requests, then requests of
its own in two steps. Every third version is good. The others cannot be loaded, cost too much, are
slow, answer wrongly, answer NaN, or end their process; their rollouts must abort by themselves.
Times are those of `time.monotonic`.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from loadtests.benches.runner import say
from loadtests.benches.server import SETTINGS_DIR, RunningServer, Settings, command_line
from loadtests.results.report_table import Table

MODEL = "changing"
REPLICAS, SERVICE_MS, LOAD = 2, 50, 0.5
RATE = LOAD * REPLICAS / (SERVICE_MS / 1000)  # requests a second that callers send
RUBBISH = "no-graph.onnx"
CHANGE_S = 300.0
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


def undecided(made: Sequence[MadeChange], *, good: bool) -> int:
    """The number of changes to good (or bad) versions that did not end as they should."""
    return sum(not each.ended for each in made if (each.kind == GOOD) is good)


def table_of_changes(made: Sequence[MadeChange]) -> Table:
    rows = []
    for kind in dict.fromkeys(each.kind for each in made):
        mine = [each for each in made if each.kind == kind]
        took = [each.ended_s - each.began_s for each in mine if each.ended] or [nan]
        decided = sum(each.ended for each in mine)
        rows.append((kind, len(mine), decided, median(took), max(took)))
    headers = ("versions", "number", "ended as they should", "after s (median)", "after s (most)")
    return Table(
        f"{REPLICAS} replicas, asked at {LOAD:.0%} of what they can do", headers, tuple(rows)
    )
