"""What do hedges, ties and ejection do for the tail, and what does that cost?

The real dispatcher, simulated: 8 replicas of 5 ms + 0.2 ms·B + 8 µs·B·L with 10 % lognormal noise,
two slots, transport 1 ms; the 70/25/5 mix, Poisson arrivals, open loop, SLO 100 ms. Troubles:
hiccups (1 % of batches 20 times slow), slow inputs (1 % of requests are, wherever they run), one
replica five times slow. Utilisation is device seconds over wall seconds. Decided by the seeds.

    python -m tests.simulation.benches.stragglers [--seconds 30] [--seeds 3]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from statistics import mean

from routers.api.settings import DispatcherSettings, HedgeParameters, OutlierParameters
from routers.api.snapshot import Snapshot
from routers.simulation.simulator import Arrival, SimDevice, World, run
from routers.simulation.traffic import SimLease, SimOutcome

REPLICAS = 8
WARM_UP_S = 2.0
SLOW_LENGTH = 40  # which the mix does not have
_PERCENTILES = (0.5, 0.99, 0.999)


def service_s(rows: int, longest: int) -> float:
    slow = 20.0 if longest == SLOW_LENGTH else 1.0
    return slow * (0.005 + 0.0002 * rows + 8e-6 * rows * longest)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Shares of batches that hiccup and of requests that are slow; factor of the first replica."""

    name: str
    hiccups: float = 0.0
    slow_inputs: float = 0.0
    slow_replica: float = 1.0


HEALTHY = Trouble("none")
HICCUPS = Trouble("hiccups", hiccups=0.01)
SLOW_INPUTS = Trouble("slow inputs", slow_inputs=0.01)
SLOW_REPLICA = Trouble("slow replica", slow_replica=5.0)


@dataclass(slots=True)
class Tail:
    """A observer; times in ms of what arrived after the warm-up, seconds of device time."""

    times: list[float] = field(default_factory=list)
    device_s: float = 0.0
    offered: int = 0
    in_slo: int = 0

    def arrived(self, outcome: SimOutcome, now: float) -> None:
        self.offered += 1

    def ended(self, outcome: SimOutcome, now: float) -> None:
        self.in_slo += outcome.in_slo
        if outcome.answered_at is not None and outcome.arrival.at >= WARM_UP_S:
            self.times.append(1000.0 * (outcome.answered_at - outcome.arrival.at))

    def sent(self, sim_lease: SimLease, now: float) -> None:
        pass

    def served(self, sim_lease: SimLease, service_s: float, now: float) -> None:
        self.device_s += service_s

    def ms(self, share: float) -> float:
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def arrivals(trouble: Trouble, rate: float, seconds: float, seed: int) -> Iterator[Arrival]:
    rng, now = random.Random(seed), 0.0
    while (now := now + rng.expovariate(rate)) < seconds:
        kind = rng.random()
        low, high = (8, 32) if kind < 0.70 else (64, 128) if kind < 0.95 else (256, 512)
        length = rng.randint(low, high)
        if rng.random() < trouble.slow_inputs:
            length = SLOW_LENGTH
        yield Arrival(now, (length,), timeout_s=10.0)


def drag(trouble: Trouble, index: int, seed: int) -> Callable[[float], float]:
    rng = random.Random(1000 * seed + index)
    base = trouble.slow_replica if index == 0 else 1.0

    def factor(now: float) -> float:
        noise = rng.lognormvariate(0.0, 0.1)
        return base * noise * (20.0 if rng.random() < trouble.hiccups else 1.0)

    return factor


def simulated(
    trouble: Trouble, settings: DispatcherSettings, rate: float, seconds: float, seed: int
) -> tuple[Tail, Snapshot]:
    devices = tuple(
        SimDevice(f"r{index}", service_s, drag=drag(trouble, index, seed))
        for index in range(REPLICAS)
    )
    tail = Tail()
    ends = run(settings, arrivals(trouble, rate, seconds, seed), World(devices), tail)
    return tail, ends[0]


def settings_of(mode: str, *, ejects: bool = True) -> DispatcherSettings:
    outliers = OutlierParameters() if ejects else OutlierParameters(eject_ratio=inf)
    return DispatcherSettings((32, 128, 512), hedge=HedgeParameters(mode), outliers=outliers)


CASES = (
    (HEALTHY, 700, "off", True),
    (HICCUPS, 700, "off", True),
    (HICCUPS, 700, "hedge", True),
    (HICCUPS, 700, "tied", True),
    (HICCUPS, 1180, "off", True),
    (HICCUPS, 1180, "hedge", True),
    (HICCUPS, 1180, "tied", True),
    (SLOW_INPUTS, 700, "off", True),
    (SLOW_INPUTS, 700, "hedge", True),
    (SLOW_INPUTS, 1100, "off", True),
    (SLOW_INPUTS, 1100, "hedge", True),
    (HEALTHY, 850, "off", True),
    (SLOW_REPLICA, 850, "off", False),
    (SLOW_REPLICA, 850, "off", True),
    (SLOW_REPLICA, 850, "hedge", True),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    print("| trouble | rows/s | hedge | ejects | utilisation | p50 | p99 | p99.9 | in SLO |")
    for trouble, rate, mode, ejects in CASES:
        settings = settings_of(mode, ejects=ejects)
        tails = [
            simulated(trouble, settings, rate, chosen.seconds, seed)[0]
            for seed in range(1, chosen.seeds + 1)
        ]
        used = mean(tail.device_s for tail in tails) / (chosen.seconds * REPLICAS)
        times = [f"{mean(tail.ms(share) for tail in tails):.1f}" for share in _PERCENTILES]
        in_slo = mean(tail.in_slo / tail.offered for tail in tails)
        said = "yes" if ejects else "no"
        cells = [trouble.name, str(rate), mode, said, f"{used:.3f}", *times, f"{in_slo:.4f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
