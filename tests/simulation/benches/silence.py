"""What does a replica that goes silent under load cost, and what does a false alarm?

The real dispatcher, simulated: 8 replicas of 5 ms + 0.2 ms·B + 8 µs·B·L with 10 % lognormal noise,
two slots, transport 1 ms; the 70/25/5 mix, Poisson arrivals, open loop, SLO 100 ms, timeout 10 s.
After 5 s the first replica falls silent: for good (given up after 65 s, or after 2 s where the
channel finds the machine dead), for as long as a collection of garbage or a neighbour may stop it,
or it only becomes slow. And 8 replicas that generate, of which one is cut off. Counted from then
on: requests answered in time, the longest wait for an answer, requests that were refused or ran out
of time, and the device seconds or rows that were spent twice. Decided by the seeds.

    python -m tests.simulation.benches.silence [--seeds 3]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from statistics import mean

from routers.api.settings import DispatcherSettings, HedgeParameters, SilenceParameters
from routers.api.snapshot import Snapshot
from routers.simulation.devices import Drag, Slow
from routers.simulation.simulator import Arrival, SimDevice, World, run
from routers.simulation.traffic import SimLease, SimOutcome
from tests.simulation.benches.stragglers import HEALTHY, arrivals, service_s
from tests.simulation.generation_load import ENGINE, Kind, engines
from tests.simulation.generation_load import settings as generating

REPLICAS = 8
FROM_S = 5.0
SECONDS = 9.0
KERNEL_S, HANG_S = 2.0, 65.0
WATCHED = SilenceParameters()
UNWATCHED = SilenceParameters(mode="off")
SILENCES = (("off", UNWATCHED), ("suspend", WATCHED))
WATCHED_STREAMS = SilenceParameters(least_s=2.5)  # as a gateway sets it
CHATS = Kind("chats", 10.0, (4000, 12000), (20, 60), slo_s=2.0, timeout_s=30.0)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What befalls the first replica. `lasts_s`: of its silence; `found_s`: when it counts as lost,
    if that is sooner; `slow`: it takes so many times as long from then on."""

    name: str
    lasts_s: float = 0.0
    found_s: float = inf
    slow: float = 1.0

    def of(self, device: SimDevice, seed: int) -> SimDevice:
        number = int(device.replica_id[1:])
        slow = (Slow(self.slow, FROM_S),) if number == 0 and self.slow > 1.0 else ()
        rng = random.Random(1000 * seed + number)
        device = replace(device, drag=Drag(rng, 0.1, slow=slow))
        if number or not self.lasts_s:
            return device
        dies_at = FROM_S + self.found_s if self.found_s < self.lasts_s else inf
        return replace(device, pauses=((FROM_S, FROM_S + self.lasts_s),), dies_at=dies_at)


WELL = Trouble("none")
GONE = Trouble("silent, found after 65 s", inf, HANG_S)
FOUND = Trouble("silent, found after 2 s", inf, KERNEL_S)
PAUSES = tuple(Trouble(f"pause of {lasts_s:g} s", lasts_s) for lasts_s in (0.1, 0.3, 1.0))
SLOW = Trouble("5 times slow", slow=5.0)
VERY_SLOW = Trouble("50 times slow", slow=50.0)


@dataclass(slots=True)
class Felt:
    """An observer, of requests that came or still waited after `FROM_S`."""

    offered: int = 0
    in_slo: int = 0
    unanswered: int = 0
    longest_s: float = 0.0
    rows_run: int = 0
    rows_asked: int = 0

    def arrived(self, outcome: SimOutcome, now: float) -> None:
        self.rows_asked += len(outcome.arrival.lengths)

    def ended(self, outcome: SimOutcome, now: float) -> None:
        if now < FROM_S:
            return
        self.offered += 1
        self.in_slo += outcome.in_slo
        self.unanswered += outcome.answered_at is None
        at = outcome.answered_at if outcome.arrival.generation is None else outcome.first_at
        self.longest_s = max(self.longest_s, (now if at is None else at) - outcome.arrival.at)

    def sent(self, sim_lease: SimLease, now: float) -> None:
        pass

    def served(self, sim_lease: SimLease, service_s: float, now: float) -> None:
        self.rows_run += len(sim_lease.members)


@dataclass(frozen=True, slots=True)
class Ran:
    felt: Felt
    end: Snapshot

    @property
    def duplicates(self) -> int:
        """Rows that devices finished beyond those that were answered."""
        return self.felt.rows_run - (self.felt.rows_asked - self.felt.unanswered)


def batches(
    trouble: Trouble, silence: SilenceParameters, rate: float, seed: int, hedge: str = "off"
) -> Ran:
    devices = [SimDevice(f"r{number}", service_s) for number in range(REPLICAS)]
    settings = DispatcherSettings((32, 128, 512), hedge=HedgeParameters(hedge), silence=silence)
    return _ran(settings, arrivals(HEALTHY, rate, SECONDS, seed), devices, trouble, seed)


def chats(trouble: Trouble, silence: SilenceParameters, seed: int) -> Ran:
    settings = generating(ENGINE, hedge=HedgeParameters("off"), silence=silence)
    coming: Iterator[Arrival] = CHATS.arrivals(seed, SECONDS)
    return _ran(settings, coming, engines(REPLICAS), trouble, seed)


def _ran(settings, coming, devices, trouble: Trouble, seed: int) -> Ran:  # type: ignore[no-untyped-def]
    felt = Felt()
    world = World(tuple(trouble.of(each, seed) for each in devices))
    return Ran(felt, run(settings, coming, world, felt)[0])


CASES = (
    *((trouble, 700.0, "off") for trouble in (WELL, GONE, FOUND, *PAUSES, SLOW, VERY_SLOW)),
    *((trouble, 700.0, "hedge") for trouble in (WELL, GONE, FOUND)),
    *((trouble, 1180.0, "off") for trouble in (WELL, GONE, FOUND, *PAUSES, SLOW, VERY_SLOW)),
)


def line(name: str, load: str, mode: str, runs: list[Ran]) -> str:
    felt, ends = [each.felt for each in runs], [each.end for each in runs]
    cells = (
        name,
        load,
        mode,
        f"{mean(each.offered for each in felt):,.0f}",
        f"{mean(each.offered - each.in_slo for each in felt):.1f}",
        f"{1000 * max(each.longest_s for each in felt):,.0f}",
        f"{mean(each.unanswered for each in felt):.1f}",
        f"{mean(each.duplicates for each in runs):.1f}",
        f"{mean(each.moved_rows for each in ends):.1f}",
        f"{mean(each.suspensions for each in ends):.1f}",
        f"{mean(each.late_rows_used for each in ends):.1f}",
    )
    return f"| {' | '.join(cells)} |"


HEADERS = (
    "trouble", "load", "silence", "offered", "not in time", "longest ms", "unanswered",
    "rows run twice", "rows moved", "suspensions", "late answers used",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(1, parser.parse_args().seeds + 1)
    print(f"| {' | '.join(HEADERS)} |\n|{'---|' * len(HEADERS)}")
    for trouble, rate, hedge in CASES:
        for mode, silence in SILENCES:
            runs = [batches(trouble, silence, rate, seed, hedge) for seed in seeds]
            load = f"{rate:,.0f}/s" + (", hedges" if hedge != "off" else "")
            print(line(trouble.name, load, mode, runs), flush=True)
    for trouble in (WELL, GONE, replace(FOUND, name="silent, found after 10 s", found_s=10.0)):
        for mode, silence in SILENCES:
            watched = WATCHED_STREAMS if mode != "off" else silence
            runs = [chats(trouble, watched, seed) for seed in seeds]
            print(line(trouble.name, "chats", mode, runs), flush=True)


if __name__ == "__main__":
    main()
