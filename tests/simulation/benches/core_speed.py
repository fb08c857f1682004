"""How many microseconds does the core take for a request, and does that grow with what waits?

`python -m tests.simulation.benches.core_speed`. A simulated pool serves 100 tenants over 8 buckets;
whoever is answered asks again at once, so that always as many wait. The events of that run are
recorded and replayed into a fresh dispatcher, whose processor time alone is counted: enqueue,
choice and completion of a request, the pool's events and timers included. Nothing turns late or is
refused: those ways out are shorter. Levels alternate within a repeat; medians are reported.
Besides, what a refusal takes under standing overload, see `refusals`.
Promise: at most 20 µs a request with 10,000 waiting, and growth from 100 to 100,000 waiting no
faster than their logarithms.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import log
from statistics import median

from loadtests.results.report_table import BenchReport, Table, at_most, publish, spread_of
from routers.dispatcher import Dispatcher
from routers.settings import DispatcherSettings
from routers.simulation.simulator import Arrival, Device, World, run
from routers.types import Action, Event
from tests.simulation.benches import refusals
from tests.simulation.benches.in_time import Tallied, service_s
from tests.simulation.benches.lengths import mix

LEVELS = (100, 1_000, 10_000, 100_000)
TENANTS = 100
EDGES = (16, 24, 32, 64, 96, 128, 256, 512)
REPLICAS = 4
PATIENCE_S = 1e6
MOST_US = 20.0
AT = 10_000

SETTINGS = DispatcherSettings(
    EDGES,
    max_queue_rows=1_000_000,
    profile=tuple((rows, edge, service_s(rows, edge)) for rows in (1, 8, 32) for edge in EDGES),
)


@dataclass(slots=True)
class Recording:
    """What the core was told. The first `filling` events bring the level about, the rest serve
    `requests` at it."""

    events: list[tuple[Event, float]]
    filling: int
    requests: int
    rows_a_batch: float


class Recorder(Dispatcher):
    def __init__(self, settings: DispatcherSettings) -> None:
        super().__init__(settings)
        self.events: list[tuple[Event, float]] = []

    def step(self, event: Event, now: float) -> list[Action]:
        self.events.append((event, now))
        return super().step(event, now)


class Callers:
    """Each asks again once it was answered, until `requests` have been; weights are 1 to 4."""

    def __init__(self, level: int, requests: int, seed: int = 1) -> None:
        self._rng = random.Random(seed)
        self._level = level
        self._left = requests

    def first(self) -> Iterator[Arrival]:
        for caller in range(self._level):
            yield self._asks(caller % TENANTS, 0.0)

    def follow(self, fate: object, now: float) -> Arrival | None:
        self._left -= 1
        return self._asks(self._rng.randrange(TENANTS), now) if self._left >= 0 else None

    def _asks(self, tenant: int, now: float) -> Arrival:
        lengths = (mix(self._rng),)
        weight = 1.0 + tenant % 4
        return Arrival(now, lengths, PATIENCE_S, PATIENCE_S, tenant=f"t{tenant}", weight=weight)


def recorded(level: int, requests: int) -> Recording:
    """Replicas join once all callers wait; the level holds until `requests` were answered."""
    cores: list[Recorder] = []

    def core(settings: DispatcherSettings) -> Recorder:
        cores.append(Recorder(settings))
        return cores[-1]

    callers, tally = Callers(level, requests), Tallied()
    devices = [Device(f"r{n}", service_s, joins_at=1e-6) for n in range(REPLICAS)]
    run(SETTINGS, callers.first(), World(tuple(devices), follow=callers.follow, core=core), tally)
    events = cores[0].events
    arrivals = 0
    for number, (event, _) in enumerate(events):
        arrivals += type(event).__name__ == "Arrive"
        if arrivals == level + requests:
            return Recording(events[: number + 1], level, requests, tally.rows / tally.batches)
    raise AssertionError("the simulation lost a request")


def replayed_us(recording: Recording) -> float:
    """Microseconds of processor time a request in a fresh dispatcher."""
    step = Dispatcher(SETTINGS).step
    for event, now in recording.events[: recording.filling]:
        step(event, now)
    rest = recording.events[recording.filling :]
    gc.collect()
    began = time.process_time()
    for event, now in rest:
        step(event, now)
    return 1e6 * (time.process_time() - began) / recording.requests


@dataclass(frozen=True, slots=True)
class Speed:
    level: int
    us: tuple[float, ...]
    rows_a_batch: float

    @property
    def median_us(self) -> float:
        return median(self.us)


def measured(levels: tuple[int, ...], requests: int, repeats: int) -> list[Speed]:
    recordings = {level: recorded(level, requests) for level in levels}
    times: dict[int, list[float]] = {level: [] for level in levels}
    for _ in range(repeats):
        for level, recording in recordings.items():
            times[level].append(replayed_us(recording))
    return [
        Speed(level, tuple(times[level]), recording.rows_a_batch)
        for level, recording in recordings.items()
    ]


def report(speeds: list[Speed], refused: list[refusals.Refusals]) -> BenchReport:
    least, most = speeds[0], speeds[-1]
    rows = tuple(
        (each.level, each.median_us, spread_of(each.us, float), each.rows_a_batch)
        for each in speeds
    )
    headers = ("waiting", "µs a request", "least–most", "rows a batch")
    caption = f"{TENANTS} tenants, {len(EDGES)} buckets, {REPLICAS} replicas"
    verdicts = [
        at_most(f"at most {MOST_US:.0f} µs with {AT:,} waiting", each.median_us, MOST_US, " µs")
        for each in speeds
        if each.level == AT
    ]
    verdicts.append(
        at_most(
            f"{least.level:,} to {most.level:,} waiting: no faster than their logarithms",
            most.median_us / least.median_us,
            log(most.level) / log(least.level),
            " ×",
        )
    )
    return BenchReport(
        name="core_speed",
        title="Speed of the core alone",
        tables=(Table(caption, headers, rows), refusals.table(refused)),
        verdicts=tuple(verdicts),
        notes=("Processor time of one thread; the garbage collector runs as always.",),
        raw={
            "speeds": [asdict(each) for each in speeds],
            "refusals": [asdict(each) for each in refused],
        },
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.benches.core_speed", description=__doc__
    )
    parser.add_argument("--levels", nargs="+", type=int, default=list(LEVELS))
    parser.add_argument("--requests", type=int, default=20_000, help="a repeat")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args(argv)
    speeds = measured(tuple(asked.levels), asked.requests, asked.repeats)
    refused = refusals.measured(asked.repeats)
    return publish(report(speeds, refused), argv, "tests.simulation.benches")


if __name__ == "__main__":
    sys.exit(main())
