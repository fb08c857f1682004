"""The simulated replicas of a scenario: when each begins and ends, and how it misbehaves.

A scenario numbers places for replicas, those of the first group first. A place holds one replica
after another: the one that runs at the start (or joins later), and a new one each time a dead one
is replaced. Each is a device of its own, as a replica that Ray restarts has a new name. A replica
that joins belongs to the first group. Times are seconds from the start of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from random import Random

from deployments.tools.simulate.fleet import Make
from deployments.tools.simulate.sim_setup import SimGroup, SimSetup, SimSetupError
from loadtests.traffic.scenario import Scenario
from routers.simulation.devices import Drag, Ramp, Slow
from routers.simulation.simulator import SimDevice


@dataclass(frozen=True, slots=True)
class Death:
    """place: of those that serve, the oldest first; where there are fewer, nobody dies."""

    at_s: float
    place: int


@dataclass(frozen=True, slots=True)
class _Death:
    at_s: float
    back_after_s: float
    hangs: bool


def devices(scenario: Scenario, setup: SimSetup) -> tuple[SimDevice, ...]:
    """Raises SimSetupError for a fault of a replica that there is not."""
    starts = [0.0] * setup.replicas
    for join in scenario.joins:
        starts += [scenario.warmup_s + join.at_s] * join.count
    deaths = _deaths(scenario, starts, setup.hang_limit_s)
    groups = [group for group in setup.groups for _ in range(group.replicas)]
    groups += [setup.groups[0]] * (len(starts) - len(groups))
    return tuple(
        device
        for place, start in enumerate(starts)
        for device in _lives(
            scenario, groups[place], _Place(place, start, setup.hang_limit_s), deaths[place]
        )
    )


def _deaths(scenario: Scenario, starts: list[float], hang_limit_s: float) -> list[list[_Death]]:
    deaths: list[list[_Death]] = [[] for _ in starts]
    for position, part in enumerate(scenario.faults.deaths):
        _check_place(f"deaths[{position}]", part.replica, len(starts))
        at_s = scenario.warmup_s + part.at_s
        back_s = inf if part.back_after_s is None else part.back_after_s
        deaths[part.replica].append(_Death(at_s, back_s, part.hangs))
    for place, death in _chaos(scenario, len(starts)):
        deaths[place].append(death)
    return [_possible(start, sorted(each, key=_when), hang_limit_s)
            for start, each in zip(starts, deaths, strict=True)]  # fmt: skip


def _chaos(scenario: Scenario, places: int) -> Iterator[tuple[int, _Death]]:
    chaos, at_s = scenario.faults.chaos, 0.0
    if chaos is None or not places:
        return
    rng = Random(f"{scenario.seed} chaos")
    while (at_s := at_s + rng.expovariate(1.0 / chaos.every_s)) < scenario.run_s:
        place, hangs = rng.randrange(places), rng.random() < chaos.hanging
        yield place, _Death(at_s, chaos.back_after_s, hangs)


def _possible(start: float, deaths: list[_Death], hang_limit_s: float) -> list[_Death]:
    """Those that find the place taken."""
    kept: list[_Death] = []
    for death in deaths:
        if death.at_s > start:
            kept.append(death)
            start = _replaced_at(death, hang_limit_s)
    return kept


def _replaced_at(death: _Death, hang_limit_s: float) -> float:
    return death.at_s + death.back_after_s + (hang_limit_s if death.hangs else 0.0)


@dataclass(frozen=True, slots=True)
class _Place:
    number: int
    start: float
    hang_limit_s: float


def _lives(
    scenario: Scenario, group: SimGroup, where: _Place, deaths: list[_Death]
) -> Iterator[SimDevice]:
    place, start = where.number, where.start
    name = f"{group.name}-{place}" if group.name else f"r{place}"
    for life, death in enumerate([*deaths, None]):
        if start == inf:
            return
        device = _device(scenario, group, name if not life else f"{name}.{life}", start)
        yield replace(
            device,
            dies_at=inf if death is None or death.hangs else death.at_s,
            hangs_at=inf if death is None or not death.hangs else death.at_s,
            hang_limit_s=where.hang_limit_s,
            drag=_drag(scenario, place, life, start),
            fails=_fails(scenario, place, life),
        )
        start = inf if death is None else _replaced_at(death, where.hang_limit_s)


def _device(scenario: Scenario, group: SimGroup, name: str, start: float) -> SimDevice:
    return SimDevice(
        name,
        group.service_s,
        group.slots,
        scenario.transport_ms / 1e3,
        joins_at=start,
        engine=group.engine,
        group=group.name,
    )


def maker(scenario: Scenario, setup: SimSetup) -> Make:
    """Makes devices as they are ordered; a pool's replicas are as fast as the first group's."""
    groups = {group.name: group for group in setup.groups}

    def make(group: str, name: str, number: int, serves_s: float) -> SimDevice:
        kind = groups.get(group) or replace(setup.groups[0], name=group)
        return replace(
            _device(scenario, kind, name, serves_s),
            hang_limit_s=setup.hang_limit_s,
            drag=_drag(scenario, number, 0, serves_s),
            fails=_fails(scenario, number, 0),
        )

    return make


def scaled_deaths(scenario: Scenario, places: int) -> tuple[Death, ...]:
    """When who dies where replicas come and go: who is lost is made good by a start. Raises
    SimSetupError for one that hangs."""
    hanging = any(part.hangs for part in scenario.faults.deaths)
    chaos = scenario.faults.chaos
    if hanging or (chaos is not None and chaos.hanging):
        raise SimSetupError("faults: replicas that hang cannot be simulated with scaling")
    set_times = [Death(scenario.warmup_s + d.at_s, d.replica) for d in scenario.faults.deaths]
    drawn = [Death(death.at_s, place) for place, death in _chaos(scenario, places)]
    return tuple(sorted([*set_times, *drawn], key=_when))


def _drag(scenario: Scenario, place: int, life: int, start: float) -> Drag | None:
    faults, warmup_s = scenario.faults, scenario.warmup_s
    hiccups, starting = faults.hiccups, faults.slow_start
    slow = tuple(
        Slow(
            each.factor,
            warmup_s + each.from_s if each.from_s else 0.0,
            inf if each.to_s is None else warmup_s + each.to_s,
        )
        for each in faults.slow
        if each.replica == place
    )
    ramp = None
    if starting is not None and start > 0.0:
        ramp = Ramp(starting.factor, start, starting.last_s)
    if not (faults.noise or hiccups or slow or ramp):
        return None
    return Drag(
        Random(f"{scenario.seed} replica {place} {life}"),
        faults.noise,
        0.0 if hiccups is None else hiccups.share,
        1.0 if hiccups is None else hiccups.factor,
        slow,
        ramp,
    )


def _fails(scenario: Scenario, place: int, life: int) -> Callable[[], bool] | None:
    share = scenario.faults.failing_rows
    if not share:
        return None
    rng = Random(f"{scenario.seed} failures of replica {place} {life}")
    return lambda: rng.random() < share


def check_places(scenario: Scenario, setup: SimSetup) -> None:
    """Raises SimSetupError for a fault of a replica that there is not."""
    places = setup.replicas + sum(join.count for join in scenario.joins)
    for position, part in enumerate(scenario.faults.slow):
        _check_place(f"slow[{position}]", part.replica, places)


def _check_place(where: str, place: int, places: int) -> None:
    if place >= places:
        raise SimSetupError(f"faults.{where}.replica: is {place}; there are {places}, from 0")


def _when(death: _Death | Death) -> float:
    return death.at_s
