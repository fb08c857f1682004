"""How many microseconds does the core take to refuse a request, when it refuses most?

One simulated replica and ten times the requests that it could answer within the SLO, open loop. The
events of that run are recorded and replayed into a fresh dispatcher; counted is the processor time
of those arrivals alone that end in a refusal. With one tenant most refusals are told again what the
like of them was told a moment ago (`admission/rejection_cache.py`), with many each is judged by
itself. See `core_speed`, which reports it.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from statistics import median

from loadtests.results.report_table import Table, spread_of
from loadtests.traffic.workload import poisson_times
from routers.dispatcher import Dispatcher
from routers.settings import DispatcherSettings
from routers.simulation.simulator import Arrival, SimDevice, World, run
from routers.types import Action, Event, Reject
from tests.simulation.benches.in_time import Tallied, service_s
from tests.simulation.benches.lengths import MIX

TENANTS = (1, 100)
RATE = 9_000.0
SECONDS = 3.0
WARM_UP_S = 1.0
SETTINGS = DispatcherSettings((32, 128, 512), slo_s=MIX.slo_s, max_queue_rows=1_000_000)

Told = tuple[bool, Event, float]
"""Whether it ended in a refusal after the warm-up; what the core was told, and when."""


class Recorder(Dispatcher):
    def __init__(self, settings: DispatcherSettings) -> None:
        super().__init__(settings)
        self.told: list[Told] = []

    def step(self, event: Event, now: float) -> list[Action]:
        actions = super().step(event, now)
        refused = any(isinstance(action, Reject) for action in actions)
        self.told.append((refused and now >= WARM_UP_S, event, now))
        return actions


def arrivals(tenants: int) -> Iterator[Arrival]:
    rng = random.Random(1)
    for at in poisson_times(RATE, SECONDS, rng):
        tenant = f"t{rng.randrange(tenants)}"
        yield Arrival(at, (MIX.draw(rng),), MIX.slo_s, 10 * MIX.slo_s, tenant=tenant)


def recorded(tenants: int) -> list[Told]:
    cores: list[Recorder] = []

    def core(settings: DispatcherSettings) -> Recorder:
        cores.append(Recorder(settings))
        return cores[-1]

    run(SETTINGS, arrivals(tenants), World((SimDevice("r", service_s),), core=core), Tallied())
    return cores[0].told


def replayed_us(told: list[Told]) -> float:
    """Microseconds of processor time a refusal in a fresh dispatcher; refusals that follow each
    other are timed together."""
    step, spent_s, refusals = Dispatcher(SETTINGS).step, 0.0, 0
    runs = [(refused, list(each)) for refused, each in groupby(told, key=itemgetter(0))]
    gc.collect()
    for refused, events in runs:
        began = time.process_time()
        for _, event, now in events:
            step(event, now)
        if refused:
            spent_s += time.process_time() - began
            refusals += len(events)
    return 1e6 * spent_s / refusals


@dataclass(frozen=True, slots=True)
class Refusals:
    """`share`: of the requests after the warm-up."""

    tenants: int
    us: tuple[float, ...]
    share: float


def measured(repeats: int) -> list[Refusals]:
    found = []
    for tenants in TENANTS:
        told = recorded(tenants)
        us = tuple(replayed_us(told) for _ in range(repeats))
        came = sum(at.at >= WARM_UP_S for at in arrivals(tenants))
        found.append(Refusals(tenants, us, sum(refused for refused, _, _ in told) / came))
    return found


def table(found: list[Refusals]) -> Table:
    rows = tuple(
        (each.tenants, median(each.us), spread_of(each.us, float), f"{100 * each.share:.0f} %")
        for each in found
    )
    headers = ("tenants", "µs a refusal", "least–most", "refused")
    return Table("Ten times what one replica can serve in time", headers, rows)
