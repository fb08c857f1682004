"""Does a scheduling decision cost more, the more replicas and tenants there are?

`python -m tests.simulation.benches.growth`. As in `core_speed`, the events of a simulated run are
replayed into a fresh dispatcher and its processor time is counted: enqueue, choice, dispatch and
completion. Whatever the fleet, 24,000 requests are live, batches hold 8 rows and take the same time
(10 % noise), so that a request costs the same number of decisions; what differs is among how many
replicas and tenants they choose. Fleets alternate within a repeat and each is compared with the
smallest of the same repeat; medians of those ratios are reported. The same for buckets, with 10
replicas and 100 tenants: the same lengths in one bucket, or in many.

Besides, a million requests over 1,000 replicas, open loop, one gateway, 70 % busy: all must end,
each once, and the processor time of the whole simulation for each is compared with 10 replicas'.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from loadtests.benches.runner import Bench, BenchOption, BenchRun, Options, Runs
from loadtests.results.report_table import BenchVerdict, Table, at_most
from routers.api.settings import DispatcherSettings
from routers.simulation.devices import Drag
from routers.simulation.simulator import SimDevice, World
from routers.simulation.simulator import run as simulate
from routers.simulation.traffic import SimLease, SimOutcome
from tests.simulation.benches.core_speed import SETTINGS, Callers, Level, recorded, request_us
from tests.simulation.benches.in_time import service_s
from tests.simulation.benches.stragglers import HEALTHY, arrivals

FLEETS = (1, 10, 100, 1_000)
TENANTS = (1, 100, 10_000)
BUCKETS = (1, 8, 32)
AMONG = (10, 100)  # replicas, tenants
LIVE = 24_000  # of which 1,000 replicas hold 16,000
NOISE = 0.1  # sigma of a batch's time: replicas do not finish in step
FULL = replace(SETTINGS, fixed_size=8, max_size=8)
OPEN = DispatcherSettings((32, 128, 512))
RATE = 120.0  # requests a second and replica
FLAT = 1.5
DECISIONS, BUCKET_COUNT, ACCOUNTS = "decisions", "buckets", "accounts"


def pool(replicas: int, joins_at: float = 0.0) -> tuple[SimDevice, ...]:
    return tuple(
        SimDevice(f"r{n}", service_s, joins_at=joins_at, drag=Drag(random.Random(n), NOISE))
        for n in range(replicas)
    )


def fleet(replicas: int, tenants: int, requests: int, settings: DispatcherSettings = FULL) -> Level:
    """Counted from when each replica has been sent twice what it holds."""
    sent = 2 * FULL.max_size * replicas
    callers = Callers(LIVE, sent + requests, tenants)
    return recorded(settings, callers, LIVE + sent, requests, pool(replicas, joins_at=1e-6))


def with_buckets(count: int) -> DispatcherSettings:
    """Of equal width."""
    longest = FULL.bucket_edges[-1]
    return replace(FULL, bucket_edges=tuple(longest * n // count for n in range(1, count + 1)))


# ---- every request ends, once --------------------------------------------------------------------


@dataclass(slots=True)
class Account:
    """An observer that counts how requests end."""

    offered: int = 0
    answered: int = 0
    refused: int = 0
    twice: int = 0

    def arrived(self, outcome: SimOutcome, now: float) -> None:
        self.offered += 1

    def ended(self, outcome: SimOutcome, now: float) -> None:
        self.answered += outcome.answered_at is not None
        self.refused += outcome.reason is not None
        self.twice += outcome.answers != 1

    def sent(self, sim_lease: SimLease, now: float) -> None:
        pass

    def served(self, sim_lease: SimLease, service_s: float, now: float) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Cost:
    """`us`: of processor time a request; `ratio`: over the smallest fleet's beside it. The rest of
    requests over one fleet: `lost` have no end, or two."""

    us: float
    ratio: float = 1.0
    offered: int = 0
    answered: int = 0
    lost: int = 0


def accounted(replicas: int, requests: int) -> Cost:
    account, rate = Account(), RATE * replicas
    began = time.process_time()
    coming = arrivals(HEALTHY, rate, requests / rate, seed=1)
    ends = simulate(OPEN, coming, World(pool(replicas)), account)
    us = 1e6 * (time.process_time() - began) / account.offered
    lost = account.offered - account.answered - account.refused + account.twice
    assert all(not (end.leases or end.waiting_rows or end.drift) for end in ends)
    return Cost(us, offered=account.offered, answered=account.answered, lost=lost)


# ---- the bench -----------------------------------------------------------------------------------


def runs(options: Options) -> Iterator[BenchRun]:
    cells = [(r, t) for r in options.replicas for t in options.tenants]
    fleets = {cell: fleet(*cell, options.requests) for cell in cells}
    for _ in range(options.repeats):
        us = {cell: request_us(level) for cell, level in fleets.items()}
        for (replicas, tenants), each in us.items():
            yield BenchRun(f"{DECISIONS} {tenants}", Cost(each, each / us[cells[0]]), replicas)
    del fleets
    sorted_in = {n: fleet(*AMONG, options.requests, with_buckets(n)) for n in options.buckets}
    for _ in range(options.repeats):
        us_by = {count: request_us(level) for count, level in sorted_in.items()}
        for count, each in us_by.items():
            yield BenchRun(BUCKET_COUNT, Cost(each, each / us_by[options.buckets[0]]), count)
    del sorted_in
    if options.accounted:
        few, many = options.accounted // 10, options.accounted
        for replicas, requests in ((10, few), (options.replicas[-1], many)):
            yield BenchRun(ACCOUNTS, accounted(replicas, requests), replicas)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    headers = ("replicas", *(f"{t:,} tenants: µs a request (×)" for t in options.tenants))
    rows = tuple(
        (
            replicas,
            *(
                f"{mine.median('us'):.1f} ({mine.median('ratio'):.2f})"
                for tenants in options.tenants
                for mine in (done.of(f"{DECISIONS} {tenants}", replicas),)
            ),
        )
        for replicas in options.replicas
    )
    yield Table("A request's decisions, beside one replica and one tenant", headers, rows)
    by_count = tuple(
        (count, mine.median("us"), mine.median("ratio"))
        for count in options.buckets
        for mine in (done.of(BUCKET_COUNT, count),)
    )
    yield Table("… beside one bucket", ("buckets", "µs a request", "×"), by_count)
    if options.accounted:
        headers = ("replicas", "requests", "answered", "lost or ended twice", "µs a request")
        yield Table(
            "The whole simulation",
            headers,
            tuple(
                (
                    r,
                    *(
                        done.of(ACCOUNTS, r).median(n)
                        for n in ("offered", "answered", "lost", "us")
                    ),
                )
                for r in (10, options.replicas[-1])
            ),
        )


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    ratios = [
        done.of(f"{DECISIONS} {tenants}", replicas).median("ratio")
        for replicas in options.replicas
        for tenants in options.tenants
    ]
    yield at_most("flat over replicas and tenants", max(ratios), FLAT, " ×")
    among = [done.of(BUCKET_COUNT, count).median("ratio") for count in options.buckets]
    yield at_most("flat over buckets", max(among), FLAT, " ×")
    if options.accounted:
        many, few = done.of(ACCOUNTS, options.replicas[-1]), done.of(ACCOUNTS, 10)
        yield at_most("requests lost or ended twice", many.median("lost"), 0.0)
        growth = many.median("us") / few.median("us")
        yield at_most("the whole simulation's growth from 10 replicas", growth, FLAT, " ×")


BENCH = Bench(
    name="growth",
    about=__doc__,
    title="Growth of the core with its fleet",
    options={
        "replicas": BenchOption(list(FLEETS)),
        "tenants": BenchOption(list(TENANTS)),
        "buckets": BenchOption(list(BUCKETS)),
        "requests": BenchOption(10_000, "a repeat"),
        "repeats": BenchOption(5),
        "accounted": BenchOption(1_000_000, "requests over the largest fleet; 0: none"),
    },
    measure=runs,
    tables=tables,
    thresholds=thresholds,
    notes=("Processor time of one thread; ratios are of runs side by side.",),
    record=asdict,
    package="tests.simulation.benches",
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
