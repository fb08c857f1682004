"""Requests that generate, engines that serve them, and what callers felt: for simulations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import merge
from math import inf
from random import Random
from typing import Any

from routers.dispatcher import Dispatcher
from routers.settings import DispatcherSettings, GenerationSettings
from routers.simulation.devices import Device, Engine
from routers.simulation.round_robin import RoundRobin
from routers.simulation.simulator import World, run
from routers.simulation.traffic import Arrival, Keeper, SimOutcome
from routers.types import Generation, ReplicaKind

EDGES = (64, 256, 1024, 4096, 16384, 65536)
# A step of 8 ms, 0.1 ms a sequence, 20,000 prompt tokens a second.
ENGINE = Engine(0.008, 0.0001, 0.00005, cache_tokens=120_000, max_sequences=128)


@dataclass(frozen=True)
class Kind:
    """Prompts and outputs are uniform between two bounds, `rate` a second; callers ask for at most
    `most` tokens. `shared`: blocks that all of them begin with."""

    tenant: str
    rate: float
    prompt: tuple[int, int]
    output: tuple[int, int]
    most: int = 1024
    weight: float = 1.0
    shared: tuple[int, ...] = ()
    slo_s: float = 60.0
    timeout_s: float = 600.0

    def arrivals(self, seed: object, until: float) -> Iterator[Arrival]:
        rng, at = Random(f"{seed} {self}"), 0.0
        while (at := at + rng.expovariate(self.rate)) < until:
            prompt, output = rng.randint(*self.prompt), rng.randint(*self.output)
            own = max(0, prompt // 16 - len(self.shared))
            name = rng.getrandbits(40) << 20
            blocks = self.shared + tuple(range(name, name + own))
            yield Arrival(
                at,
                (prompt,),
                self.slo_s,
                self.timeout_s,
                tenant=self.tenant,
                weight=self.weight,
                generation=Generation(self.most, 1, blocks),
                output=min(self.most, output),
            )


@dataclass(frozen=True)
class Ran:
    fates: list[SimOutcome]
    cores: list[Any]
    replicas: list[Any]

    def of(self, *tenants: str, after: float = 0.0) -> list[SimOutcome]:
        return [f for f in self.fates if f.arrival.tenant in tenants and f.arrival.at >= after]

    def first_token_s(self, quantile: float, *tenants: str, after: float = 10.0) -> float:
        """Of answered requests of these tenants."""
        times = [
            fate.first_at - fate.arrival.at
            for fate in self.of(*tenants, after=after)
            if fate.first_at is not None
        ]
        return sorted(times)[int(quantile * (len(times) - 1))]

    def token_s(self, quantile: float, *tenants: str) -> float:
        times = sorted(fate.token_s for fate in self.of(*tenants) if fate.token_s)
        return times[int(quantile * (len(times) - 1))]

    def hit_rate(self) -> float:
        """Of the prompts' tokens, the share that was cached."""
        tokens = [fate.tokens for fate in self.fates if fate.answered_at is not None]
        return sum(t.cached for t in tokens) / sum(t.input for t in tokens)


def settings(engine: Engine = ENGINE, **more: Any) -> DispatcherSettings:
    told = {"block_tokens": engine.block_tokens, "profile": engine.profile()}
    generation = GenerationSettings(**(told | more.pop("generation", {})))
    return DispatcherSettings(EDGES, generation=generation, slo_s=1.0, **more)


def engines(count: int, engine: Engine = ENGINE, **more: Any) -> tuple[Device, ...]:
    one = Device("", lambda rows, width: 0.0, kind=ReplicaKind.STREAM, engine=engine, **more)
    return tuple(replace(one, replica_id=f"r{n}") for n in range(count))


def play(
    kinds: Iterable[Kind],
    replicas: int = 1,
    until: float = 60.0,
    *,
    seed: object = 1,
    engine: Engine = ENGINE,
    in_turn: bool = False,
    devices: tuple[Device, ...] | None = None,
    check: bool = False,
    leaving: dict[str, float] | None = None,
    **more: Any,
) -> Ran:
    """`in_turn`: by `RoundRobin` instead of the dispatcher; `check`: invariants after each step;
    `leaving`: after how many seconds a tenant's callers leave; `more`: the core's settings."""
    keeper = Keeper()
    arrivals = _leaving(
        leaving or {},
        merge(*(kind.arrivals(seed, until) for kind in kinds), key=lambda each: each.at),
    )
    made: list[Any] = []

    def core(settings: DispatcherSettings) -> Any:
        made.append(RoundRobin(settings) if in_turn else Dispatcher(settings))
        return made[-1]

    def inspect(core: Any) -> None:
        if check and not in_turn:
            core.check()

    world = World(devices or engines(replicas, engine), core=core, inspect=inspect, built=[])
    run(settings(engine, **more), arrivals, world, keeper)
    return Ran(keeper.fates, made, world.built or [])


def _leaving(after_s: dict[str, float], arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
    for arrival in arrivals:
        arrival.leaves_at = arrival.at + after_s.get(arrival.tenant, inf)
        yield arrival


def weighted(
    fates: Iterable[SimOutcome], begin: float, end: float, output_weight: float = 2.0
) -> float:
    """Weighted tokens that these were given between two times: a prompt when its first token came,
    the output evenly from there to the answer."""
    total = 0.0
    for fate in fates:
        first, last, tokens = fate.first_at, fate.answered_at, fate.tokens
        if first is None or last is None:
            continue
        if begin <= first < end:
            total += tokens.input - tokens.cached
        span = max(last - first, 1e-9)
        total += output_weight * tokens.output * max(0.0, min(last, end) - max(first, begin)) / span
    return total


def jain(shares: Iterable[float]) -> float:
    """Jain's index of fairness: 1 where all are equal."""
    each = list(shares)
    return sum(each) ** 2 / (len(each) * sum(share * share for share in each))
