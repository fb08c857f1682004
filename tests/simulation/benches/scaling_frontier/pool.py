"""Several models beside a shared pool of replicas that can become any of them in seconds.

Each model decides by itself. While what it has ordered still starts, it is lent what the pool has
free, and gives it back once its own are hot; each loan serves after the pool's start time. An ideal
pool: every replica can become every model, at no cost to the others. The pool's replicas count from
the begin to the end, lent or idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from tests.simulation.benches.scaling_frontier.load import Load
from tests.simulation.benches.scaling_frontier.world import (
    STEP_S,
    Model,
    Played,
    Policy,
    Starts,
)


class Pool:
    """lent: by model, those that serve or are about to."""

    def __init__(self, size: int, models: Sequence[Model], starts: Starts, seed: int) -> None:
        self.free = size
        self.lent = [0] * len(models)
        self._models = models
        self._start_s = starts.draws(seed)
        self._joining: list[tuple[float, int]] = []
        self._returning: list[float] = []

    def step(self, now: float) -> None:
        while self._joining and self._joining[0][0] < now + STEP_S:
            at, place = heappop(self._joining)
            self._models[place].queue.join(at)
            self._models[place].fleet.borrowed += 1
        while self._returning and self._returning[0] <= now:
            heappop(self._returning)
            self.free += 1
        for place in range(len(self._models)):
            self._take_back(place, now)
        while self.free and (place := self._neediest()) is not None:
            self.free -= 1
            self.lent[place] += 1
            heappush(self._joining, (now + self._start_s(), place))

    def _need(self, place: int) -> int:
        """Replicas that are ordered and not hot yet."""
        fleet = self._models[place].fleet
        return max(0, fleet.target - fleet.hot)

    def _neediest(self) -> int | None:
        short = [(self._need(place) - lent, place) for place, lent in enumerate(self.lent)]
        need, place = max(short)
        return place if need > 0 else None

    def _take_back(self, place: int, now: float) -> None:
        """What serves and is no longer needed; what is about to serve comes back then."""
        model = self._models[place]
        while model.fleet.borrowed and self.lent[place] > self._need(place):
            heappush(self._returning, model.queue.leave(now))
            model.fleet.borrowed -= 1
            self.lent[place] -= 1


def play_shared(
    loads: Sequence[Load], policies: Sequence[Policy], size: int, pool_starts: Starts,
    starts: Starts,
) -> tuple[list[Played], float]:  # fmt: skip
    """All models over loads of one length, and replica-hours of all with the pool's."""
    models = [
        Model(load, policy, starts.draws(seed), max(1, round(1.3 * load.cut(0.0, 60.0).busy)))
        for seed, (load, policy) in enumerate(zip(loads, policies, strict=True), 1)
    ]
    pool = Pool(size, models, pool_starts, seed=99)
    steps = min(model.steps for model in models)
    for step in range(steps):
        for model in models:
            model.step(step)
        pool.step(STEP_S * (step + 1))
    played = [model.played() for model in models]
    return played, sum(p.replica_h for p in played) + size * steps * STEP_S / 3600
