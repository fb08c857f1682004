"""Requests for adapters of uneven popularity, and how many loads they cost whom: for simulations.

`python -m tests.simulation.adapter_load` prints the table of docs/generation.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from random import Random
from typing import Any

from routers.api.requests import Generation, Request
from routers.api.settings import DispatcherSettings
from routers.simulation.baselines import AdapterHash, RoundRobin
from routers.simulation.simulator import World, run
from routers.simulation.traffic import Arrival, SimRecorder
from routers.stream.scheduler import StreamScheduler
from runtimes.synthetic.engine import EngineShape
from tests.simulation.generation_load import ENGINE, Ran, engines, settings

ADAPTERS, REPLICAS, PLACES = 50, 4, 8
LOAD_S = 0.02
RATE = 20.0  # requests a second


class AtRandom(RoundRobin):
    """Each request goes to any replica."""

    def __init__(self, told: DispatcherSettings) -> None:
        super().__init__(told)
        self._rng = Random(1)

    def next_replica(self, replicas: tuple[str, ...], request: Request) -> str:
        return self._rng.choice(replicas)


def arrivals(
    seed: object, until: float, rate: float = RATE, weights: Sequence[float] = ()
) -> Iterator[Arrival]:
    """Zipf: the n-th adapter is asked for 1/n times as often as the first, each request
    independent of those before."""
    rng, at = Random(f"adapters {seed}"), 0.0
    names = [f"a{n}" for n in range(1, ADAPTERS + 1)]
    weights = weights or [1.0 / n for n in range(1, ADAPTERS + 1)]
    while (at := at + rng.expovariate(rate)) < until:
        prompt, output = rng.randint(100, 2000), rng.randint(20, 100)
        first = rng.getrandbits(40) << 20
        blocks = tuple(range(first, first + prompt // 16))
        (adapter,) = rng.choices(names, weights)
        yield Arrival(
            at, (prompt,), 2.0, 60.0,
            generation=Generation(256, 1, blocks, adapter), output=output,
        )  # fmt: skip


def shape(places: int = PLACES, load_s: float = LOAD_S) -> EngineShape:
    return replace(ENGINE, adapters_resident=places, adapter_load_s=load_s)


def play(
    engine: EngineShape,
    until: float,
    core: Callable[[DispatcherSettings], Any] = StreamScheduler,
    **more: Any,
) -> Ran:
    """`more`: of `arrivals`."""
    recorder, made = SimRecorder(), []

    def make(told: DispatcherSettings) -> Any:
        made.append(core(told))
        return made[-1]

    places = {"adapters_resident": engine.adapters_resident}
    world = World(engines(REPLICAS, engine), core=make, built=[])
    told = settings(engine, generation=places)
    run(told, arrivals(more.pop("seed", 1), until, **more), world, recorder)
    return Ran(recorder.outcomes, made, world.built or [])


def loads(ran: Ran) -> int:
    return sum(replica.adapters.loads for replica in ran.replicas)


def asked(ran: Ran) -> list[str]:
    """The adapters, in the order in which requests for them came."""
    given = [outcome.arrival.generation for outcome in ran.outcomes]
    return [each.adapter for each in given if each is not None]


def belady_loads(names: Sequence[str], places: int) -> int:
    """The fewest loads with which requests in this order can be served, one after the other, from
    so many places, wherever these are: what is asked for again last goes first."""
    upcoming: dict[str, float] = {}
    again = [inf] * len(names)
    for at in range(len(names) - 1, -1, -1):
        again[at] = upcoming.get(names[at], inf)
        upcoming[names[at]] = at
    held: dict[str, float] = {}
    count = 0
    for name, next_at in zip(names, again, strict=True):
        if name not in held:
            count += 1
            if len(held) >= places:
                del held[max(held, key=lambda each: held[each])]
        held[name] = next_at
    return count


def known_loads(names: Sequence[str], places: int) -> int:
    """The loads of what knows each adapter's popularity beforehand but not the requests to come:
    the most popular are held, and one place takes the others in turn."""
    counts = {name: names.count(name) for name in set(names)}
    kept = set(sorted(counts, key=lambda each: -counts[each])[: places - 1])
    count, last = len(kept), ""
    for name in names:
        if name not in kept and name != last:
            count, last = count + 1, name
    return count


def table(until: float = 120.0) -> Iterator[str]:
    yield "| load | placed by | loads | × offline | first token p50 ms | p99 ms | p99 × resident |"
    yield "|---|---|---|---|---|---|---|"
    resident = play(shape(ADAPTERS, 0.0), until)
    p99_s = resident.first_token_s(0.99, "default")
    for load_s in (0.002, 0.02, 0.1):
        for name, core in (
            ("Headrace", StreamScheduler), ("hash of the name", AdapterHash), ("chance", AtRandom),
        ):  # fmt: skip
            ran = play(shape(load_s=load_s), until, core)
            best = belady_loads(asked(ran), REPLICAS * PLACES)
            p50, p99 = (ran.first_token_s(q, "default") for q in (0.5, 0.99))
            yield (
                f"| {1000 * load_s:g} ms | {name} | {loads(ran):,} | {loads(ran) / best:.2f} "
                f"| {1000 * p50:.0f} | {1000 * p99:.0f} | {p99 / p99_s:.2f} |"
            )
    names = asked(resident)
    yield (
        f"{len(names):,} requests; offline optimum {best:,} loads, popularity known "
        f"{known_loads(names, REPLICAS * PLACES):,}; all resident: p50 "
        f"{1000 * resident.first_token_s(0.5, 'default'):.0f} ms, p99 {1000 * p99_s:.0f} ms"
    )


def by_places(until: float = 120.0) -> Iterator[str]:
    yield "| `adapters_resident` | loads | offline | popularity known | p99 × all resident |"
    yield "|---|---|---|---|---|"
    p99_s = play(shape(ADAPTERS, 0.0), until).first_token_s(0.99, "default")
    for places in (8, 12, 16, 24):
        ran = play(shape(places), until)
        best, known = (each(asked(ran), REPLICAS * places) for each in (belady_loads, known_loads))
        share = ran.first_token_s(0.99, "default") / p99_s
        yield f"| {places} | {loads(ran)} | {best} | {known} | {share:.2f} |"


if __name__ == "__main__":
    for line in chain(table(), by_places()):
        print(line, flush=True)
