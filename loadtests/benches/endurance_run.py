"""Everything at once on one server for a while: changes, ragged load, streams, and faults.

Three models behind two gateways: one that is changed again and again under its callers, one under
ragged requests of two tenants of which some misbehave, one that streams to callers of whom some
read slowly. Meanwhile faults take one process after the other. At the end there are the log of all
requests, the changes, the faults, samples of memory, and what is still held once nobody asks.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loadtests.benches import changing_model, metrics_page, ragged_load
from loadtests.benches.changing_model import MadeChange
from loadtests.benches.launched import RunningServer
from loadtests.benches.process_faults import Injected, Struck, schedule, strike, wait_until_back
from loadtests.benches.request_log import ANYBODY, RequestLog
from loadtests.benches.runner import Options, say
from loadtests.benches.server import SETTINGS_DIR, Settings, headrace
from loadtests.benches.slow_streams import StreamCallers
from loadtests.benches.soak_watch import LEVELS, SoakSample, SoakWatch
from loadtests.client.http1 import Target
from loadtests.client.tally import LoadResult

NAME = "endurance"
HOME = Path("out/bench") / NAME
GATEWAYS = 2
WRITER, SEQUENCES = "writer", 8
WRITER_SETTINGS: Settings = {
    "runtime": "synthetic",
    "task": "generate",
    "slo": {"ttft_ms": 5000, "tpot_ms": 200},
    "lengths": {"max": 2048},
    "replicas": {"count": 2},
    "options": {"base_ms": 50, "max_sequences": SEQUENCES},
}
SLOW_SHARE = 0.3
CAPACITY_S, PAUSE_S, SAMPLE_S, SAY_S, SETTLE_S = 10.0, 2.0, 5.0, 30.0, 45.0
ALL = frozenset({changing_model.MODEL, ragged_load.MODEL, WRITER})
STREAMS = frozenset({WRITER})
STRUCK = (
    Struck("a gateway", r"^ray::ServeReplica:gateway:", GATEWAYS, STREAMS),
    Struck("a replica of the model that changes", r"^ray::ServeReplica:model-changing:model", 2),
    Struck("a replica of the ragged model", r"^ray::ServeReplica:model-ragged:model", 2),
    Struck("a replica that streams", r"^ray::ServeReplica:model-writer:model", 2, STREAMS),
    Struck("an anchor", r"^ray::ServeReplica:model-(changing|ragged|writer):anchor", 3),
    Struck("the registry", r"^ray::RegistryActor"),
    Struck("the autoscaler", r"^ray::AutoscalerActor"),
    Struck("Serve's controller", r"^ray::ServeController"),
    Struck("HAProxy's manager", r"^ray::HAProxyManager", 1, ALL, port=True),
    Struck("HAProxy", r"^\S*haproxy .*haproxy\.cfg", 1, ALL, port=True),
)


@dataclass(slots=True)
class Endured:
    """capacity: of the ragged model, requests a second, before all began. levels: by gateway and
    level, after all has ended. started_s: of `time.monotonic`, as all times are."""

    started_s: float
    capacity: float
    log: RequestLog = field(default_factory=RequestLog)
    changes: list[MadeChange] = field(default_factory=list)
    faults: list[Injected] = field(default_factory=list)
    not_struck: list[str] = field(default_factory=list)
    ragged: LoadResult | None = None
    samples: list[SoakSample] = field(default_factory=list)
    levels: dict[str, dict[str, float]] = field(default_factory=dict)

    def struck_during(self, change: MadeChange) -> list[Injected]:
        """Faults that fell into a change, or that were not over when it began."""
        return [
            each
            for each in self.faults
            if each.at_s <= change.ended_s and each.at_s + each.back_s >= change.began_s
        ]


def settings() -> Settings:
    return {
        "models": {
            changing_model.MODEL: changing_model.version(0),
            ragged_load.MODEL: ragged_load.MODEL_SETTINGS,
            WRITER: WRITER_SETTINGS,
        },
        "tenants": ragged_load.TENANTS,
        "gateway": {"replicas": GATEWAYS},
    }


def endured(options: Options) -> Endured:
    changing_model.write_rubbish()
    with headrace(settings(), name=NAME, home=HOME) as running:
        found = Endured(time.monotonic(), ragged_load.capacity(running.url, CAPACITY_S))
        say(f"{found.capacity:.0f} ragged requests/s in a closed loop")
        with SoakWatch(running, SAMPLE_S) as watch:
            asyncio.run(_EverythingAtOnce(running, found, options).run())
        found.samples = watch.samples
        found.levels = levels_by_gateway(running, SETTLE_S)
    return found


class _EverythingAtOnce:
    """Threads change and strike; the loop asks, and ends when all of them have."""

    def __init__(self, running: RunningServer, found: Endured, options: Options) -> None:
        self._running, self._found, self._options = running, found, options
        self._seconds = options.minutes * 60
        self._began_s = time.monotonic()
        self._over = threading.Event()

    async def run(self) -> None:
        streams = self._streams()
        asking = changing_model.Callers(self._running.url, self._found.log.note)
        ended = asyncio.Event()
        callers = [asyncio.create_task(each) for each in (asking.run(), streams.run(ended))]
        saying = asyncio.create_task(self._say())
        with self._until_the_end():
            self._found.ragged, *_ = await asyncio.gather(
                self._ask_ragged(),
                asyncio.to_thread(self._change_again_and_again),
                asyncio.to_thread(self._strike_again_and_again),
            )
        for who in (changing_model.MODEL, WRITER, ANYBODY):
            self._found.log.ended(who, time.monotonic())
        asking.stop()
        ended.set()
        await asyncio.gather(*callers)
        saying.cancel()

    @contextmanager
    def _until_the_end(self) -> Iterator[None]:
        """Threads end when their time is up, or when whoever waits for them does."""
        timer = threading.Timer(self._seconds, self._over.set)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._over.set()

    async def _ask_ragged(self) -> LoadResult:
        rate, log = self._options.load * self._found.capacity, self._found.log
        callers = ragged_load.callers(
            self._running.url, rate, self._seconds, self._options.mischief, log.note
        )
        callers.start()
        result = await callers.run()
        log.ended(ragged_load.MODEL, time.monotonic())
        return result

    def _streams(self) -> StreamCallers:
        number = round(self._options.load * SEQUENCES * 2)
        target = Target.parse(f"{self._running.url}/v1/completions")
        slow = round(number * SLOW_SHARE)
        return StreamCallers(target, WRITER, number, slow, self._found.log.note)

    def _change_again_and_again(self) -> None:
        number = 0
        while not self._over.wait(PAUSE_S):
            number += 1
            file = SETTINGS_DIR / f"{NAME}.yaml"
            made = changing_model.change(self._running, number, file=file, home=HOME)
            self._found.changes.append(made)

    def _strike_again_and_again(self) -> None:
        """None in the first and the last `every` seconds."""
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

    async def _say(self) -> None:
        while True:
            await asyncio.sleep(SAY_S)
            log, changes = self._found.log, self._found.changes
            ended = sum(each.ended for each in changes)
            gap_s, _ = log.gaps.get(ANYBODY, (0.0, 0.0))
            say(
                f"{self._at()} answered {log.total('answered')}, refused {log.total('refused')}, "
                f"lost {log.total('lost')}, longest gap {gap_s:.2f} s, "
                f"{ended} of {len(changes)} changes right, {len(self._found.faults)} faults"
            )

    def _at(self) -> str:
        passed_s = time.monotonic() - self._began_s
        return f"{passed_s // 60:02.0f}:{passed_s % 60:02.0f}"


def levels_by_gateway(running: RunningServer, limit_s: float) -> dict[str, dict[str, float]]:
    """Of every gateway, the levels once they are all zero, or after `limit_s`: a page is of the
    gateway that happens to be asked."""
    found: dict[str, dict[str, float]] = {}
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        page = metrics_page.fetch(running.url)
        present = {line.name: line.labels.get("gateway", "") for line in page}
        levels = {name: metrics_page.total(page, name) for name in LEVELS if name in present}
        if levels:
            found[present[next(iter(levels))]] = levels
        held = any(any(each.values()) for each in found.values())
        if len(found) >= GATEWAYS and not held:
            break
        time.sleep(0.2)
    return found
