"""Who decides what a pool replica holds: ours, and what it is compared with.

LRU, LFU and GDSF load what somebody waits for, the oldest request first, at once, in the place of
the model that was asked for longest ago, least often (ever), or is of least count × load time /
bytes since it was loaded, with GDSF's inflation (Cherkasova 1998). None lets a model go that has
work; `stay_s` keeps each of them from letting one go that has just come, as ours does. `Static` is
told the true popularity beforehand and never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from autoscaling.demand import WINDOWS_S, Demand, DemandView
from autoscaling.pool import ResidentWant, choose_residents
from autoscaling.settings import PoolTerms
from autoscaling.types import DemandReading, PoolReading, ResidentReading
from tests.simulation.benches.pooled_models import LOAD_S, ROOM, TICK_S, WORK_S, View

CROSSING_S = 0.5  # from a crossing to a decision


class OnDemand:
    """`worth(model)`: the least goes."""

    def __init__(self, stay_s: float = 0.0) -> None:
        self.stay_s = stay_s

    def asked(self, model: str, now: float) -> None:
        raise NotImplementedError

    def worth(self, model: str) -> float:
        raise NotImplementedError

    def evicted(self, model: str) -> None:
        """It will be."""

    def hold(self, view: View, now: float) -> Iterable[str]:
        unheld = view.unheld
        if not unheld:
            return list(view.held)
        if len(view.held) < ROOM:
            return [unheld[0], *view.held]
        may_go = [
            model
            for model, since in view.held.items()
            if model not in view.busy and now - since >= self.stay_s
        ]
        if not may_go:
            return list(view.held)
        victim = min(may_go, key=self.worth)
        self.evicted(victim)
        return [unheld[0], *(model for model in view.held if model != victim)]


class Lru(OnDemand):
    def __init__(self, stay_s: float = 0.0) -> None:
        super().__init__(stay_s)
        self._last: dict[str, float] = {}

    def asked(self, model: str, now: float) -> None:
        self._last[model] = now

    def worth(self, model: str) -> float:
        return self._last[model]


class Lfu(OnDemand):
    def __init__(self, stay_s: float = 0.0) -> None:
        super().__init__(stay_s)
        self._count: dict[str, int] = {}

    def asked(self, model: str, now: float) -> None:
        self._count[model] = self._count.get(model, 0) + 1

    def worth(self, model: str) -> float:
        return self._count[model]


class Gdsf(OnDemand):
    """All are of one size and load time here, which leaves count + inflation."""

    def __init__(self, stay_s: float = 0.0) -> None:
        super().__init__(stay_s)
        self._count: dict[str, int] = {}
        self._worth: dict[str, float] = {}
        self._inflation = 0.0

    def asked(self, model: str, now: float) -> None:
        self._count[model] = self._count.get(model, 0) + 1
        self._worth[model] = self._inflation + self._count[model] * LOAD_S

    def worth(self, model: str) -> float:
        return self._worth[model]

    def evicted(self, model: str) -> None:
        self._inflation = self._worth[model]
        self._count[model] = 0


class Static:
    """`best`: the most popular over the whole run, as many as fit."""

    def __init__(self, best: tuple[str, ...]) -> None:
        self._best = best[:ROOM]

    def asked(self, model: str, now: float) -> None:
        pass

    def hold(self, view: View, now: float) -> Iterable[str]:
        return self._best


Rate = Callable[[DemandView], float]


def recent(view: DemandView) -> float:
    return view.recent_rate()


def last_8_s(view: DemandView) -> float:
    return view.rate(8.0)


class Ours:
    """`choose_residents`, told what the production demand windows say. A minute's forecast is too
    slow for loads of seconds; `rate` may be another reading of the same windows. `wake_s`: what
    models that were held before are priced by."""

    def __init__(self, models: Iterable[str], rate: Rate = recent, wake_s: float = LOAD_S) -> None:
        self._rate, self._wake_s = rate, wake_s
        self._seen: set[str] = set()
        self._demand = {model: Demand() for model in models}
        self._count = dict.fromkeys(self._demand, 0)
        self._terms = PoolTerms(max=1, memory_bytes=ROOM)
        self._told_at = -TICK_S
        self._chosen: tuple[str, ...] = ()

    def asked(self, model: str, now: float) -> None:
        self._count[model] += 1

    def hold(self, view: View, now: float) -> Iterable[str]:
        """Decided every second, and soon after somebody waits for what is not held."""
        if now - self._told_at >= (CROSSING_S if view.unheld else TICK_S):
            self._told_at = now
            self._tell(now)
            self._chosen = self._decided(view, now)
        return self._chosen

    def _decided(self, view: View, now: float) -> tuple[str, ...]:
        self._seen |= view.held.keys()
        wakes = dict.fromkeys(self._seen, self._wake_s)
        wants = {
            model: ResidentWant(
                model, len(view.waiting[model]) * WORK_S, self._expected(demand, now),
                wakes.get(model, LOAD_S), 1, anew_s=LOAD_S,
            )
            for model, demand in self._demand.items()
        }  # fmt: skip
        residents = tuple(
            ResidentReading(model, True, 1, LOAD_S, since, model in view.busy, self._wake_s)
            for model, since in view.held.items()
        )
        kept = {model: wake_s for model, wake_s in wakes.items() if model not in view.held}
        reading = PoolReading("pool", residents, ROOM - len(residents), kept)
        return choose_residents({"pool": reading}, wants, self._terms, now)["pool"]

    def _tell(self, now: float) -> None:
        for model, demand in self._demand.items():
            count = self._count[model]
            reading = DemandReading(count * WORK_S, count * WORK_S * WORK_S, count)
            demand.on_report("g0", reading, now)

    def _expected(self, demand: Demand, now: float) -> float:
        return self._rate(demand.view(WINDOWS_S, now))
