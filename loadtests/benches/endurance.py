"""Bench: does a server survive an hour of load, changes and faults without loss or leaks?

`python -m loadtests.benches.endurance --minutes 60`: one server with two gateways and three models.
`changing_model` is changed again and again, at half of its capacity; the ragged model and the
streaming model of `endurance_callers` get the share `--load` of theirs; faults hit one process
after another. `--no-faults` leaves these out: then what is lost or slow is the changes' doing.

Promises: only requests that were under way at a process that died are lost; no answer is wrong;
good versions are promoted (unless a fault hits the change) and bad ones never; every process that
died comes back; no queue entry or lease is left at the end; memory grows by at most 5 % over the
last two thirds.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from math import inf, nan
from typing import Any

from loadtests.benches import changing_model, metrics_page
from loadtests.benches.changing_model import GOOD, MadeChange, table_of_changes, undecided
from loadtests.benches.endurance_callers import (
    RAGGED,
    RAGGED_SETTINGS,
    SEQUENCES,
    TENANTS,
    WRITER,
    WRITER_SETTINGS,
    Asking,
    asking,
    capacity,
)
from loadtests.benches.memory_growth import (
    LEVELS,
    RAYS,
    MemoryGrowth,
    ServerSample,
    levels_of,
    lived,
    peak,
    watching,
    whole,
)
from loadtests.benches.process_faults import (
    Injected,
    Struck,
    schedule,
    server_processes,
    strike,
    wait_until_back,
)
from loadtests.benches.request_log import (
    ANYBODY,
    CONNECT_S,
    RequestLog,
    beyond,
    by_fault,
    silence_s,
)
from loadtests.benches.runner import Bench, BenchOption, BenchRun, Options, Runs, say
from loadtests.benches.server import BENCH_DIR, SETTINGS_DIR, RunningServer, Settings, headrace
from loadtests.client.load import LoadResult
from loadtests.results.report_table import BenchVerdict, Table, at_most, spread_of

NAME = "endurance"
HOME = BENCH_DIR / NAME
GATEWAYS = 2
CAPACITY_S, PAUSE_S, SAMPLE_S, SETTLE_S = 10.0, 5.0, 5.0, 45.0
LAST_CHANGE_S = 40.0
ALL = frozenset({changing_model.MODEL, RAGGED, WRITER})
STREAMS = frozenset({WRITER})
_OF_MODELS = (
    Struck("a replica of the model that changes", r"^ray::ServeReplica:model-changing:model", 2),
    Struck("a replica of the ragged model", r"^ray::ServeReplica:model-ragged:model", 2),
    Struck("a replica that streams", r"^ray::ServeReplica:model-writer:model", 2, STREAMS),
    Struck("an anchor", r"^ray::ServeReplica:model-(changing|ragged|writer):anchor", 3),
)
STRUCK = server_processes(_OF_MODELS, GATEWAYS, streams=STREAMS, everybody=ALL)


@dataclass(slots=True)
class Endured:
    """The result of a run."""

    started_s: float
    capacity: float  # of the ragged model, requests a second, measured before the run
    log: RequestLog = field(default_factory=RequestLog)
    changes: list[MadeChange] = field(default_factory=list)
    faults: list[Injected] = field(default_factory=list)
    not_struck: list[str] = field(default_factory=list)
    ragged: LoadResult | None = None
    samples: list[ServerSample] = field(default_factory=list)
    levels: dict[str, dict[str, float]] = field(default_factory=dict)  # by gateway, at the end

    def struck_during(self, change: MadeChange) -> list[Injected]:
        """Faults that happened during a change, or that were not over when it began."""
        return [
            each
            for each in self.faults
            if each.at_s <= change.ended_s and each.at_s + each.back_s >= change.began_s
        ]


def settings() -> Settings:
    return {
        "models": {
            changing_model.MODEL: changing_model.version(0),
            RAGGED: RAGGED_SETTINGS,
            WRITER: WRITER_SETTINGS,
        },
        "tenants": TENANTS,
        "gateway": {"replicas": GATEWAYS},
    }


def endured(options: Options) -> Endured:
    changing_model.write_rubbish()
    with headrace(settings(), name=NAME, home=HOME) as running:
        found = Endured(time.monotonic(), capacity(running.url, CAPACITY_S))
        say(f"{found.capacity:.0f} ragged requests/s in a closed loop")
        plan = Asking(
            running.url,
            rate=options.load * found.capacity,
            seconds=options.minutes * 60,
            client_faults=options.client_faults,
            streams=round(options.load * SEQUENCES * 2),
        )
        with watching(running, SAMPLE_S) as samples, asking(plan) as all_:
            _Disturbance(running, found, options).run()
        found.log, found.ragged, found.samples = all_.log, all_.ragged, samples
        found.levels = levels_by_gateway(running, SETTLE_S)
    return found


class _Disturbance:
    """Threads that change the model and inject faults until the time is up."""

    def __init__(self, running: RunningServer, found: Endured, options: Options) -> None:
        self._running, self._found, self._options = running, found, options
        self._seconds = options.minutes * 60
        self._began_s = time.monotonic()
        self._over = threading.Event()

    def run(self) -> None:
        """Runs the threads to their end. Raises what either of them raises."""
        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(self._change_again_and_again)]
            if self._options.faults:
                done.append(pool.submit(self._strike_one_by_one))
            try:
                wait(done, timeout=self._seconds, return_when=FIRST_EXCEPTION)
            finally:
                self._over.set()
        for each in done:
            each.result()

    def _change_again_and_again(self) -> None:
        """Changes the model until LAST_CHANGE_S before the end."""
        number, last_s = 0, self._began_s + self._seconds - LAST_CHANGE_S
        while not self._over.wait(PAUSE_S) and time.monotonic() < last_s:
            number += 1
            file = SETTINGS_DIR / f"{NAME}.yaml"
            made = changing_model.change(self._running, number, file=file, home=HOME)
            self._found.changes.append(made)
            ended = sum(each.ended for each in self._found.changes)
            say(f"{self._at()} {ended} of {number} changes ended as they should")

    def _strike_one_by_one(self) -> None:
        """Injects faults, but none in the first and the last `every` seconds."""
        faults = schedule(STRUCK, random.Random(self._options.seed))
        last_s = self._began_s + self._seconds - self._options.every
        next_s = self._began_s + self._options.every
        while not self._over.wait(max(0.0, next_s - time.monotonic())):
            if not faults or next_s > last_s:
                return
            fault = faults.pop(0)
            if injected := strike(self._running, fault, self._over):
                self._found.faults.append(injected)
                wait_until_back(self._running, injected, STRUCK, self._over)
                say(f"{self._at()} {fault}, all back after {injected.back_s:.0f} s")
            else:
                self._found.not_struck.append(str(fault))
                say(f"{self._at()} {fault}: there is no such process")
            next_s = max(next_s + self._options.every, time.monotonic() + PAUSE_S)

    def _at(self) -> str:
        passed_s = time.monotonic() - self._began_s
        return f"{passed_s // 60:02.0f}:{passed_s % 60:02.0f}"


def levels_by_gateway(running: RunningServer, limit_s: float) -> dict[str, dict[str, float]]:
    """The levels of every gateway, once they are all zero, or after `limit_s`.

    A request for `/metrics` reaches any gateway, so this asks until every gateway has answered.
    """
    found: dict[str, dict[str, float]] = {}
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        page = metrics_page.fetch(running.url)
        if levels := levels_of(page):
            gateway = next(line.labels.get("gateway", "") for line in page if line.name in levels)
            found[gateway] = levels
        held = any(any(each.values()) for each in found.values())
        if len(found) >= GATEWAYS and not held:
            break
        time.sleep(0.2)
    return found


MAX_GROWTH = 0.05
MAX_GAP_S = 2.0
DRIFT = "headrace_accounting_drift"
WRONG = ("500", "501", "502")


def runs(options: Options) -> Iterator[BenchRun]:
    yield BenchRun("endured", endured(options))


def wrong_errors(result: LoadResult) -> dict[str, int]:
    """Numbers of answers that not even a malformed request may get."""
    kinds = {**result.errors, **result.client_faults}
    return {kind: count for kind, count in kinds.items() if kind.rpartition(" ")[2] in WRONG}


# ---- the report ---------------------------------------------------------------------------------


def tables(done: Runs, options: Options) -> Iterator[Table]:
    (found,) = done.results
    yield table_of_callers(found)
    yield table_of_faults(found)
    yield table_of_changes(found.changes)
    if found.ragged:
        outcomes = tuple(sorted(found.ragged.client_faults.items()))
        yield Table("Those that misbehaved", ("outcome", "requests"), outcomes)
    rows = tuple(
        (name, peak(found.samples, name), sum(each.get(name, 0) for each in found.levels.values()))
        for name in LEVELS
    )
    yield Table("Held", ("level", "peak at a gateway", "at all when nobody asked"), rows)
    if found.samples:
        yield table_of_memory(found)


def table_of_callers(found: Endured) -> Table:
    outside = Counter(each.caller for each in beyond(found.log.lost, found.faults))
    log = found.log
    rows = tuple(
        (
            name, counts["answered"], counts["refused"], counts["lost"], outside[name],
            log.longest_s.get(name, 0.0), log.gaps.get(name, (0.0, 0.0))[0],
        )
        for name, counts in sorted(log.counts.items())
    )  # fmt: skip
    headers = (
        "model", "answered", "refused", "lost", "of these more than a fault promises",
        "longest answer s", "longest time without an answer s",
    )  # fmt: skip
    return Table("What became of requests", headers, rows)


def table_of_faults(found: Endured) -> Table:
    failed, rows = by_fault(found.log.failed, found.faults), []
    for index, each in enumerate(found.faults):
        lost = [request for request in failed.get(index, ()) if not request.refused]
        refused = len(failed.get(index, ())) - len(lost)
        rows.append((
            str(each.fault), (each.at_s - found.started_s) / 60, len(lost),
            len(beyond(lost, found.faults)), refused,
            silence_s(found.log, each.at_s, each.gone_s + CONNECT_S),
            each.gone_s - each.at_s, each.back_s,
        ))  # fmt: skip
    headers = (
        "fault", "at min", "lost", "more than it promises", "refused",
        "longest time without an answer to anybody s", "gone, or on, after s", "all back after s",
    )  # fmt: skip
    return Table("Faults, and what was lost and refused until the next", headers, tuple(rows))


def _least_and_most(grown: Sequence[MemoryGrowth]) -> tuple[str, str]:
    """The range of MiB after the warm-up, and the range of their growth."""
    shares = sorted(each.share for each in grown)
    said = [f"{share:+.1%}" for share in (shares[0], shares[-1])]
    return spread_of(grown, lambda each: each.began_mib), " to ".join(dict.fromkeys(said))


def table_of_memory(found: Endured) -> Table:
    grown = lived(found.samples)
    roles = sorted({each.role for each in grown})
    mine = {role: [each for each in grown if each.role == role] for role in roles}
    rows = tuple((role, len(own), *_least_and_most(own)) for role, own in mine.items())
    everything = ("all processes, the others too", None, *_least_and_most([whole(found.samples)]))
    headers = ("process", "number", "MiB each, a third in", "grown by")
    return Table("Memory of what lived through the last two thirds", headers, (*rows, everything))


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    (found,) = done.results
    log = found.log
    outside = beyond(log.lost, found.faults)
    yield at_most("requests lost beyond what was under way at what died", len(outside), 0)
    wrong = sum("wrong" in each.why or each.why.startswith("200") for each in log.lost)
    yield at_most("answers that were wrong", wrong, 0)
    bad = sum(wrong_errors(found.ragged).values()) if found.ragged else 0
    yield at_most("malformed requests answered 500, 501 or 502", bad, 0)
    claim = "longest time without an answer to anybody, but while HAProxy was stopped"
    yield at_most(claim, silence_otherwise_s(found), MAX_GAP_S, " s")
    away = [str(each.fault) for each in found.faults if each.back_s == inf]
    yield BenchVerdict("what died came back", ", ".join(away) or "all of it", not away)
    calm = [each for each in found.changes if not found.struck_during(each)]
    yield at_most("good changes not made, no fault about", undecided(calm, good=True), 0)
    yield at_most("bad changes not taken back", undecided(found.changes, good=False), 0)
    yield from bars_of_levels(found)
    if found.samples:
        grown = lived(found.samples)
        ours = [each for each in grown if each.role not in RAYS]
        yield _flat("memory of our processes that lived throughout", ours)
        yield _flat("memory of Ray's own", [each for each in grown if each.role in RAYS])
        yield _flat("memory of all together", [whole(found.samples)])


def silence_otherwise_s(found: Endured) -> float:
    """The longest time without an answer to any caller, except while HAProxy was stopped: there is
    only one HAProxy, so nobody gets an answer while it hangs."""
    if ANYBODY not in found.log.gaps:
        return inf
    hung = [each for each in found.faults if each.fault.struck.name == "HAProxy" and not each.ends]
    gaps = (
        gap_s
        for gap_s, at_s in found.log.silences
        if not any(at_s <= each.gone_s and at_s + gap_s >= each.at_s for each in hung)
    )
    return max(gaps, default=0.0)


def bars_of_levels(found: Endured) -> Iterator[BenchVerdict]:
    held = [
        f"{name} at {gateway}: {value:g}"
        for gateway, levels in found.levels.items()
        for name, value in levels.items()
        if value
    ]
    none = bool(found.levels) and not held
    yield BenchVerdict("nothing is held at the end", ", ".join(held) or "nothing", none)
    drift = max((abs(each.levels.get(DRIFT, 0.0)) for each in found.samples), default=inf)
    yield at_most("accounted − actual, at any time", drift, 0)


def _flat(what: str, grown: Sequence[MemoryGrowth]) -> BenchVerdict:
    most = max(grown, key=lambda each: each.share, default=None)
    said = f"{most.share:+.1%} ({most.name})" if most else "none lived"
    held = most is not None and most.share <= MAX_GROWTH
    return BenchVerdict(f"{what}: grown by at most {MAX_GROWTH:.0%}", said, held)


def notes(done: Runs, options: Options) -> Iterator[str]:
    (found,) = done.results
    met = sum(bool(found.struck_during(each)) for each in found.changes)
    refused = found.ragged.errors.get("connect", 0) if found.ragged else 0
    late_ms = found.ragged.lag_ms(99) if found.ragged else nan
    yield (
        f"{len(found.faults)} faults, every process by SIGKILL, SIGTERM and SIGSTOP in random "
        f"order (seed {options.seed}); {len(found.changes)} changes, of which {met} met a fault."
    )
    yield (
        f"The ragged model was asked for {options.load * found.capacity:.0f} of the "
        f"{found.capacity:.0f} requests/s that a closed loop got; its callers were refused "
        f"{refused} connections, and tried again. It sent {late_ms:.0f} ms late (p99), where it "
        "had a connection or not."
    )
    for each in found.changes:
        if not each.ended and each.kind == GOOD:
            faults = ", ".join(str(met.fault) for met in found.struck_during(each))
            yield f"A good change that was not made ({faults or 'no fault'}): {_reason(each.said)}"
    reasons = Counter(" ".join(each.why.split())[:60] for each in found.log.lost)
    for why, number in reasons.most_common(8):
        yield f"Lost: {number} × {why}"


def _reason(said: str) -> str:
    """The line of `apply`'s output that says how the change ended."""
    lines = [line for line in said.splitlines() if ": " in line and "`headrace diff" not in line]
    return lines[-1][:200] if lines else said[:200]


def record(found: Endured) -> dict[str, Any]:
    """The run as data for the report; times are those of `time.monotonic`."""
    return {
        "started_s": found.started_s,
        "faults": [[str(f.fault), f.at_s, f.gone_s, f.back_s] for f in found.faults],
        "not_struck": found.not_struck,
        "changes": [asdict(each) for each in found.changes],
        "counts": {who: dict(each) for who, each in found.log.counts.items()},
        "longest_s": dict(found.log.longest_s),
        "failed": [asdict(each) for each in found.log.failed],
        "gaps": dict(found.log.gaps),
        "silences": found.log.silences,
        "ragged": found.ragged.summary() if found.ragged else None,
        "samples": [asdict(each) for each in found.samples],
        "levels": found.levels,
    }


BENCH = Bench(
    name="endurance",
    about=__doc__,
    title=lambda options: f"Everything at once, {options.minutes:g} minutes",
    options={
        "minutes": BenchOption(60.0),
        "load": BenchOption(0.6, "share of what models can do"),
        "faults": BenchOption(True),
        "every": BenchOption(100.0, "s from a fault to the next"),
        "client_faults": BenchOption(0.06, "share of ragged requests that misbehave"),
        "seed": BenchOption(17),
    },
    measure=runs,
    tables=tables,
    thresholds=thresholds,
    notes=notes,
    record=record,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
