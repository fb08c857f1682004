"""How many microseconds does the core take for a request, and does that grow with what waits?

`python -m tests.simulation.benches.core_speed`. A simulated pool serves 100 tenants over 8 buckets;
whoever is answered asks again at once, so that always as many wait. The events of that run are
recorded and replayed into a fresh dispatcher, whose processor time alone is counted: enqueue,
choice and completion of a request, the pool's events and timers included. Nothing turns late or is
refused: those ways out are shorter. Levels alternate within a repeat; medians are reported.

Besides, what a refusal takes under standing overload: one simulated replica and ten times what it
could answer within the SLO; counted is the time of those arrivals alone that end in a refusal. With
one tenant most refusals are told again what the like of them was told a moment ago
(`state/rejection_cache.py`), with many each is judged by itself.

At last, which of the core's modules that time is spent in, by the profiler, whose own cost a call
makes modules of many small functions look larger than they are. Compiled modules show nothing.

Promise: at most 20 µs a request with 10,000 waiting, 8 with 10, and growth from 100 to 100,000
waiting no faster than their logarithms.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from math import log
from pathlib import Path

from loadtests.benches.runner import Bench, BenchOption, BenchRun, Options, Runs
from loadtests.results.report_table import BenchVerdict, Table, at_most
from loadtests.traffic.workload import poisson_times
from routers.api.actions import Action, Reject
from routers.api.events import Event
from routers.api.settings import DispatcherSettings
from routers.batch.scheduler import BatchScheduler
from routers.simulation.simulator import Arrival, SimDevice, World
from routers.simulation.simulator import run as simulate
from tests.simulation.benches.in_time import Tallied, service_s
from tests.simulation.benches.lengths import MIX, mix

LEVELS = (10, 100, 1_000, 10_000, 100_000)
TENANTS = 100
EDGES = (16, 24, 32, 64, 96, 128, 256, 512)
REPLICAS = 4
PATIENCE_S = 1e6
MAX_US = {10: 8.0, 10_000: 20.0}
GROWS_FROM = 100  # with fewer, batches are small and a request bears more of a decision's cost
PARTS = 5
CORE = Path("routers")

SETTINGS = DispatcherSettings(
    EDGES,
    max_queue_rows=1_000_000,
    profile=tuple((rows, edge, service_s(rows, edge)) for rows in (1, 8, 32) for edge in EDGES),
)
REFUSED_TENANTS = (1, 100)
REFUSED_RATE = 9_000.0
REFUSED_S = 3.0
WARM_UP_S = 1.0
REFUSING = DispatcherSettings((32, 128, 512), slo_s=MIX.slo_s, max_queue_rows=1_000_000)
PART_HEADERS = ("module", "of the time")
LEVEL, REFUSALS, PARTS_OF = "level", "refusals", "parts"


@dataclass(frozen=True, slots=True)
class Told:
    """What the core was told, when, and whether it ended in a refusal."""

    event: Event
    now: float
    refused: bool


class Recorder:
    """A core that is listened to; it may be compiled, and then nothing inherits from it."""

    def __init__(self, settings: DispatcherSettings) -> None:
        self.told: list[Told] = []
        self._core = BatchScheduler(settings)
        self.snapshot = self._core.snapshot

    def step(self, event: Event, now: float) -> list[Action]:
        actions = self._core.step(event, now)
        refused = any(isinstance(action, Reject) for action in actions)
        self.told.append(Told(event, now, refused))
        return actions


def record(
    settings: DispatcherSettings, arrivals: Iterable[Arrival], world: World
) -> tuple[list[Told], Tallied]:
    """What one core was told in a simulation, and what came of it."""
    cores: list[Recorder] = []

    def core(given: DispatcherSettings) -> Recorder:
        cores.append(Recorder(given))
        return cores[-1]

    tally = Tallied()
    simulate(settings, arrivals, replace(world, core=core), tally)
    return cores[0].told, tally


# ---- a request, by what waits --------------------------------------------------------------------


class Callers:
    """Each asks again once it was answered, until `requests` have been; weights are 1 to 4."""

    def __init__(self, level: int, requests: int, tenants: int, seed: int = 1) -> None:
        self._rng = random.Random(seed)
        self._level = level
        self._left = requests
        self._tenants = tenants

    def first(self) -> Iterator[Arrival]:
        for caller in range(self._level):
            yield self._asks(caller % self._tenants, 0.0)

    def follow(self, fate: object, now: float) -> Arrival | None:
        self._left -= 1
        return self._asks(self._rng.randrange(self._tenants), now) if self._left >= 0 else None

    def _asks(self, tenant: int, now: float) -> Arrival:
        lengths = (mix(self._rng),)
        weight = 1.0 + tenant % 4
        return Arrival(now, lengths, PATIENCE_S, PATIENCE_S, tenant=f"t{tenant}", weight=weight)


@dataclass(frozen=True, slots=True)
class Level:
    """The first `filling` events bring the level about, the rest serve `requests` at it."""

    settings: DispatcherSettings
    told: list[Told]
    filling: int
    requests: int
    rows_a_batch: float


def level_of(waiting: int, requests: int) -> Level:
    """Replicas join once all callers wait; the level holds until `requests` were answered."""
    devices = tuple(SimDevice(f"r{n}", service_s, joins_at=1e-6) for n in range(REPLICAS))
    return recorded(SETTINGS, Callers(waiting, requests, TENANTS), waiting, requests, devices)


def recorded(
    settings: DispatcherSettings,
    callers: Callers,
    filling: int,
    requests: int,
    devices: tuple[SimDevice, ...],
) -> Level:
    """`filling`: requests that come before those that count."""
    told, tally = record(settings, callers.first(), World(devices, follow=callers.follow))
    arrivals, filled = 0, 0
    for number, each in enumerate(told, start=1):
        arrivals += type(each.event).__name__ == "Arrive"
        if arrivals == filling and not filled:
            filled = number
        if arrivals == filling + requests:
            return Level(settings, told[:number], filled, requests, tally.rows / tally.batches)
    raise AssertionError("the simulation lost a request")


def request_us(level: Level) -> float:
    """Microseconds of processor time a request in a fresh dispatcher. What was recorded is none of
    its garbage, and not looked through for any."""
    gc.collect()
    gc.freeze()
    step = BatchScheduler(level.settings).step
    for each in level.told[: level.filling]:
        step(each.event, each.now)
    rest = level.told[level.filling :]
    gc.collect()
    began = time.process_time()
    for each in rest:
        step(each.event, each.now)
    return 1e6 * (time.process_time() - began) / level.requests


def parts_of(level: Level) -> Counter[str]:
    """Seconds by module of the core, what it calls of Python's own included."""
    step, profile = BatchScheduler(level.settings).step, cProfile.Profile()
    for each in level.told[: level.filling]:
        step(each.event, each.now)
    profile.enable()
    for each in level.told[level.filling :]:
        step(each.event, each.now)
    profile.disable()
    parts: Counter[str] = Counter()
    for (path, _, _), (_, _, own_s, _, callers) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if path != "~":
            parts[module(path)] += own_s
            continue
        for (caller, _, _), (_, _, called_s, _) in callers.items():
            parts[module(caller)] += called_s
    return parts


def module(path: str) -> str:
    found = Path(path)
    if CORE.name not in found.parts:
        return "else"
    return "/".join(found.parts[found.parts.index(CORE.name) :])


# ---- a refusal -----------------------------------------------------------------------------------


def refused_arrivals(tenants: int) -> Iterator[Arrival]:
    rng = random.Random(1)
    for at in poisson_times(REFUSED_RATE, REFUSED_S, rng):
        tenant = f"t{rng.randrange(tenants)}"
        yield Arrival(at, (MIX.draw(rng),), MIX.slo_s, 10 * MIX.slo_s, tenant=tenant)


def refusal_us(told: list[Told]) -> float:
    """Microseconds of processor time a refusal in a fresh dispatcher; refusals that follow each
    other are timed together."""
    step, spent_s, refusals = BatchScheduler(REFUSING).step, 0.0, 0
    alike = [(refused, list(each)) for refused, each in groupby(told, key=counts)]
    gc.collect()
    for refused, events in alike:
        began = time.process_time()
        for each in events:
            step(each.event, each.now)
        if refused:
            spent_s += time.process_time() - began
            refusals += len(events)
    return 1e6 * spent_s / refusals


def counts(each: Told) -> bool:
    return each.refused and each.now >= WARM_UP_S


def refused_share(told: list[Told], tenants: int) -> float:
    came = sum(arrival.at >= WARM_UP_S for arrival in refused_arrivals(tenants))
    return sum(map(counts, told)) / came


# ---- the bench -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Speed:
    """`parts`: modules and the share of the time that is spent in each, the largest first."""

    us: float
    rows_a_batch: float = 0.0
    refused: float = 0.0
    parts: tuple[tuple[str, float], ...] = ()


def runs(options: Options) -> Iterator[BenchRun]:
    levels = {waiting: level_of(waiting, options.requests) for waiting in options.levels}
    for _ in range(options.repeats):
        for waiting, level in levels.items():
            yield BenchRun(LEVEL, Speed(request_us(level), level.rows_a_batch), waiting)
    for waiting, level in levels.items():
        if waiting in MAX_US:
            parts = parts_of(level)
            shares = tuple((name, s / parts.total()) for name, s in parts.most_common(PARTS))
            us = 1e6 * parts.total() / level.requests
            yield BenchRun(PARTS_OF, Speed(us, parts=shares), waiting)
    for tenants in REFUSED_TENANTS:
        told, _ = record(REFUSING, refused_arrivals(tenants), World((SimDevice("r", service_s),)))
        share = refused_share(told, tenants)
        for _ in range(options.repeats):
            yield BenchRun(REFUSALS, Speed(refusal_us(told), refused=share), tenants)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    rows = tuple(
        (waiting, mine.median("us"), mine.spread("us"), mine.median("rows_a_batch"))
        for waiting in options.levels
        for mine in (done.of(LEVEL, waiting),)
    )
    headers = ("waiting", "µs a request", "least–most", "rows a batch")
    yield Table(f"{TENANTS} tenants, {len(EDGES)} buckets, {REPLICAS} replicas", headers, rows)
    refused = tuple(
        (tenants, mine.median("us"), mine.spread("us"), f"{100 * mine.median('refused'):.0f} %")
        for tenants in REFUSED_TENANTS
        for mine in (done.of(REFUSALS, tenants),)
    )
    for waiting in MAX_US:
        for each in done.of(PARTS_OF, waiting).results:
            shares = tuple((name, f"{100 * share:.0f} %") for name, share in each.parts)
            yield Table(f"The {PARTS} largest parts with {waiting:,} waiting", PART_HEADERS, shares)
    headers = ("tenants", "µs a refusal", "least–most", "refused")
    yield Table("Ten times what one replica can serve in time", headers, refused)


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    us = {waiting: done.of(LEVEL, waiting).median("us") for waiting in options.levels}
    for waiting, max_us in MAX_US.items():
        if waiting in us:
            claim = f"at most {max_us:.0f} µs with {waiting:,} waiting"
            yield at_most(claim, us[waiting], max_us, " µs")
    grown = [waiting for waiting in options.levels if waiting >= GROWS_FROM]
    if len(grown) < 2:
        return
    least, most = grown[0], grown[-1]
    claim = f"{least:,} to {most:,} waiting: no faster than their logarithms"
    yield at_most(claim, us[most] / us[least], log(most) / log(least), " ×")


BENCH = Bench(
    name="core_speed",
    about=__doc__,
    title="Speed of the core alone",
    options={
        "levels": BenchOption(list(LEVELS)),
        "requests": BenchOption(20_000, "a repeat"),
        "repeats": BenchOption(5),
    },
    measure=runs,
    tables=tables,
    thresholds=thresholds,
    notes=("Processor time of one thread; the garbage collector runs as always.",),
    record=asdict,
    package="tests.simulation.benches",
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
