"""A newcomer to which nothing can follow is only queued, and everything goes on as if all had been
looked at."""

import random
from math import inf

import pytest

from routers.api.actions import Action
from routers.api.events import Event
from routers.api.settings import DispatcherSettings, HedgeParameters
from routers.batch.scheduler import BatchScheduler
from routers.simulation.simulator import Arrival, SimDevice, World, run

pytestmark = pytest.mark.interpreted

EDGES = (32, 128)


class Watched(BatchScheduler):
    """Keeps what it was told and said. `skips`: how often it only queued or refused."""

    def __init__(self, settings: DispatcherSettings) -> None:
        super().__init__(settings)
        self.said: list[tuple[Event, float, list[Action]]] = []
        self.skips = 0
        self.settles = 0

    def step(self, event: Event, now: float) -> list[Action]:
        before = self.settles
        actions = super().step(event, now)
        self.skips += self.settles == before
        self.said.append((event, now, actions))
        return actions

    def _decide(self, now: float, actions: list[Action]) -> None:
        self.settles += 1
        super()._decide(now, actions)


class Thorough(BatchScheduler):
    """Looks at everything after every event."""

    def step(self, event: Event, now: float) -> list[Action]:
        self._wakeups.quiet_until = -inf
        return super().step(event, now)


class InTwo(BatchScheduler):
    """As queues use it: takes in each event, and decides afterwards."""

    def step(self, event: Event, now: float) -> list[Action]:
        actions: list[Action] = []
        return actions + self.decide(now) if self.take(event, now, actions) else actions


class Nobody:
    def arrived(self, *told):
        pass

    ended = sent = served = arrived


def poisson(rate, seconds=1.5, seed=1):
    rng, now = random.Random(seed), 0.0
    while (now := now + rng.expovariate(rate)) < seconds:
        lengths = tuple(rng.randint(1, 128) for _ in range(rng.choice((1, 1, 3))))
        tenant, priority = rng.choice("abc"), rng.choice((0, 1, 1, 2))
        leaves_at = now + rng.choice((0.05, 9.0))
        yield Arrival(now, lengths, 0.1, 0.4, leaves_at, tenant, priority)


def watched(rate, **settings):
    cores = []

    def core(told):
        cores.append(Watched(told))
        return cores[-1]

    rng = random.Random(2)
    devices = tuple(
        SimDevice(
            name,
            lambda rows, width: 0.004 + 1e-5 * rows * width,
            drag=lambda now: 10.0 if rng.random() < 0.05 else 1.0,
        )
        for name in "xy"
    )
    told = DispatcherSettings(EDGES, **settings)
    run(told, poisson(rate), World(devices, core=core), Nobody())
    return told, cores[0]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "hedge", "tied"])
@pytest.mark.parametrize(
    ("rate", "hold"),
    [
        (100.0, "auto"),
        (500.0, "never"),
        pytest.param(3000.0, "never", marks=pytest.mark.slow),
    ],
)
def test_same_is_said_as_if_everything_were_looked_at_after_each_event(rate, hold, mode):
    settings, core = watched(rate, hold=hold, hedge=HedgeParameters(mode, min_samples=5))
    thorough, in_two = Thorough(settings), InTwo(settings)
    assert core.skips > 0
    for event, now, actions in core.said:
        assert thorough.step(event, now) == actions
        assert in_two.step(event, now) == actions


def test_newcomer_to_a_full_house_is_looked_at_alone():
    _, core = watched(3000.0)
    assert core.skips > 0.5 * len(core.said)


def test_timer_is_asked_for_when_a_newcomer_is_due_before_all_others(start):
    driver = start(initial_cost_s=0.1)
    driver.replicas("a")
    driver.arrive(1)
    driver.arrive(2, slo_s=5.0)
    first = driver.timer
    driver.arrive(3, slo_s=2.0, at=0.5)
    assert driver.timer < first
    driver.arrive(4, slo_s=9.0, at=0.6)
    assert driver.timer < first


def test_timer_is_asked_for_again_by_a_newcomer_that_comes_after_it(start):
    driver = start(initial_cost_s=0.1)
    driver.replicas("a")
    driver.arrive(1, slo_s=1.0, timeout_s=3.0)
    driver.timer, late_from = None, 2.0
    driver.arrive(2, at=late_from)
    assert driver.timer == 3.0
