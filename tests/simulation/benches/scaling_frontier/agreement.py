"""Does the fast model say what the real dispatcher says?

The same requests go through `world` with a fixed number of replicas and through the router's
simulator: the dispatcher itself, batches of one row, a row's length its cost in milliseconds,
`late: refuse`. Compared: the share that is not in time. Near saturation the dispatcher, which knows
costs by length class only, starts some that then end just too late; the fast model knows each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from routers.api.settings import DispatcherSettings
from routers.simulation.simulator import Arrival, SimDevice, World, run
from tests.simulation.benches.in_time import Tallied
from tests.simulation.benches.scaling_frontier.load import MAX_COST_S, SLO_S, Load, flat
from tests.simulation.benches.scaling_frontier.rivals import Static
from tests.simulation.benches.scaling_frontier.world import Starts, play

REPLICAS = (4, 8, 20)
UTILISATIONS = (0.7, 0.85, 0.95, 1.2)
EDGES = (200, 300, 400, int(1e3 * MAX_COST_S))
WITHIN = 0.04  # of what is offered


@dataclass(frozen=True, slots=True)
class Agreement:
    """Shares of what was offered that were not in time, by the fast model and by the dispatcher."""

    replicas: int
    utilisation: float
    fast: float
    real: float


def service_s(rows: float, width: float) -> float:
    return 1e-3 * width


def really(load: Load, replicas: int) -> float:
    profile = tuple((1, width, 1e-3 * width) for width in range(50, EDGES[-1] + 1, 50))
    settings = DispatcherSettings(
        EDGES, fixed_size=1, max_size=1, slo_s=SLO_S, late="refuse", profile=profile
    )
    tally = Tallied()
    devices = tuple(SimDevice(f"r{n}", service_s, slots=1) for n in range(replicas))
    run(settings, _arrivals(load), World(devices), tally)
    return 1.0 - tally.in_slo / tally.offered


def _arrivals(load: Load) -> Iterator[Arrival]:
    for came, cost in zip(load.times.tolist(), load.costs.tolist(), strict=True):
        yield Arrival(came, (max(1, round(1e3 * cost)),), SLO_S, 10 * SLO_S)


def compared(seconds: float = 120.0, seed: int = 1) -> Iterator[Agreement]:
    for replicas in REPLICAS:
        for utilisation in UTILISATIONS:
            load = flat(utilisation * replicas, seconds, seed)
            fast = play(load, Static(replicas), Starts(), hot=replicas).misses
            yield Agreement(replicas, utilisation, fast, really(load, replicas))
