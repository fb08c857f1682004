"""Runs one server under ragged load, streams, changes of a model and faults, all at once.

The server has two gateways and three models: `changing_model` is changed again and again, the other
two are those of `endurance_callers`. Meanwhile faults hit one process after another. The result has
a log of all requests, the changes, the faults, samples of memory, and the gateways' queues and
leases after the load's end. Times are those of `time.monotonic`.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from loadtests.benches import changing_model, metrics_page
from loadtests.benches.changing_model import MadeChange
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
from loadtests.benches.memory_growth import ServerSample, levels_of, watching
from loadtests.benches.process_faults import (
    Injected,
    Struck,
    schedule,
    server_processes,
    strike,
    wait_until_back,
)
from loadtests.benches.request_log import RequestLog
from loadtests.benches.runner import Options, say
from loadtests.benches.server import BENCH_DIR, SETTINGS_DIR, RunningServer, Settings, headrace
from loadtests.client.load import LoadResult

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
