"""What a fault costs those who ask meanwhile: a load whose every request is remembered, a blow, and
the record read afterwards.

Nobody says `x-idempotent: false`: every request may run twice.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from served import Server

from tests.cluster.steady_load import Outcome, SteadyLoad

REPORT = "HEADRACE_CHAOS"  # environment: a file that every measured fault adds a line to
SLOW_S = 1.0
BACK_S = 60.0
_SETTLE_S = 1.5
_LOOKS_S = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """`callers` with a request under way each, `pause_s` between an answer and the next."""

    callers: int
    pause_s: float


LOADS = {"light": Load(4, 0.05), "peak": Load(24, 0.0)}


@dataclass(frozen=True, slots=True)
class FaultCost:
    """lost: requests whose connection ended without an answer; refused: those answered with an
    error. gap_s: the longest time in which nobody got an answer; longest_s: the longest that one
    took; slow_s: until answers took less than a second again; back_s: until all was there again;
    failed_at_s: when what failed did; these three from the fault on."""

    fault: str
    answered: int
    lost: int
    refused: int
    gap_s: float
    longest_s: float
    slow_s: float
    reasons: tuple[str, ...]
    back_s: float = 0.0
    failed_at_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Blow:
    """`name`: of the fault, its load included; `strike`: begins it, and returns soon. Callers of
    `model` go on for `lasts_s`, and until `is_back`."""

    name: str
    strike: Callable[[], object]
    load: str = "light"
    lasts_s: float = 3.0
    is_back: Callable[[], bool] = lambda: True
    model: str = "steady"


def measured(server: Server, blow: Blow) -> FaultCost:
    """Reported, too. Fails when all is not back in time."""
    load = LOADS[blow.load]
    callers = SteadyLoad([server.url], blow.model, callers=load.callers, pause_s=load.pause_s)
    with callers:
        callers.settle(_SETTLE_S)
        at = time.monotonic()
        blow.strike()
        back_s = _until_back(server, blow, at)
    cost = cost_of(blow.name, callers.outcomes, at, back_s)
    report(cost)
    return cost


def _until_back(server: Server, blow: Blow, at: float) -> float:
    """Seconds until all was back for the first time and stayed so, at the end of `lasts_s`."""
    back_s: float | None = None

    def is_over() -> bool:
        nonlocal back_s
        passed_s = time.monotonic() - at
        if not blow.is_back():
            back_s = None
        elif back_s is None:
            back_s = passed_s
        time.sleep(_LOOKS_S)
        return back_s is not None and passed_s >= blow.lasts_s

    server.until(is_over, blow.lasts_s + BACK_S)
    assert back_s is not None
    return back_s


def cost_of(fault: str, outcomes: Sequence[Outcome], at: float, back_s: float = 0.0) -> FaultCost:
    after = [each for each in outcomes if each.ended_s >= at]
    failed = [each.reason for each in outcomes if each.reason]
    refused = [reason for reason in failed if reason[:1].isdigit()]
    answered = sorted(each.ended_s for each in after if not each.reason)
    late = [each.ended_s - at for each in after if each.took_s > SLOW_S]
    return FaultCost(
        fault,
        answered=len(outcomes) - len(failed),
        lost=len(failed) - len(refused),
        refused=len(refused),
        gap_s=max((b - a for a, b in zip([at, *answered], answered, strict=False)), default=0.0),
        longest_s=max((each.took_s for each in after), default=0.0),
        slow_s=max(late, default=0.0),
        reasons=tuple(sorted(set(failed))),
        back_s=back_s,
        failed_at_s=tuple(round(each.ended_s - at, 3) for each in outcomes if each.reason),
    )


def report(cost: FaultCost) -> None:
    """As a line of JSON, where the environment names a file."""
    if path := os.environ.get(REPORT):
        with Path(path).open("a") as file:
            file.write(json.dumps(asdict(cost)) + "\n")


def outcome(sent_s: float, ended_s: float, reason: str = "") -> Outcome:
    """One that tests of the counting make up."""
    return Outcome("http://here", sent_s, ended_s, reason)
