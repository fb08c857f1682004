"""Requests that generate, engines that serve them, and what callers felt: for simulations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import merge
from math import inf
from random import Random
from typing import Any

from routers.api.requests import Generation
from routers.api.settings import DispatcherSettings, GenerationParameters
from routers.simulation.baselines import RoundRobin
from routers.simulation.devices import SimDevice
from routers.simulation.simulator import World, run
from routers.simulation.traffic import Arrival, SimOutcome, SimRecorder
from routers.stream.scheduler import StreamScheduler
from runtimes.synthetic.engine import EngineShape
from tests.routers.invariants import check as check_invariants

EDGES = (64, 256, 1024, 4096, 16384, 65536)
# A step of 8 ms, 0.1 ms a sequence, 20,000 prompt tokens a second.
ENGINE = EngineShape(0.008, 0.0001, 0.00005, cache_tokens=120_000, max_sequences=128)


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
    outcomes: list[SimOutcome]
    cores: list[Any]
    replicas: list[Any]

    def of(self, *tenants: str, after: float = 0.0) -> list[SimOutcome]:
        return [f for f in self.outcomes if f.arrival.tenant in tenants and f.arrival.at >= after]

    def first_token_s(self, quantile: float, *tenants: str, after: float = 10.0) -> float:
        """Of answered requests of these tenants."""
        times = [
            outcome.first_at - outcome.arrival.at
            for outcome in self.of(*tenants, after=after)
            if outcome.first_at is not None
        ]
        return sorted(times)[int(quantile * (len(times) - 1))]

    def token_s(self, quantile: float, *tenants: str) -> float:
        times = sorted(outcome.token_s for outcome in self.of(*tenants) if outcome.token_s)
        return times[int(quantile * (len(times) - 1))]

    def hit_rate(self) -> float:
        """Of the prompts' tokens, the share that was cached."""
        tokens = [outcome.tokens for outcome in self.outcomes if outcome.answered_at is not None]
        return sum(t.cached for t in tokens) / sum(t.input for t in tokens)


def settings(engine: EngineShape = ENGINE, **more: Any) -> DispatcherSettings:
    told = {"block_tokens": engine.block_tokens, "profile": engine.profile()}
    generation = GenerationParameters(**(told | more.pop("generation", {})))
    return DispatcherSettings(EDGES, generation=generation, slo_s=1.0, **more)


def engines(count: int, engine: EngineShape = ENGINE, **more: Any) -> tuple[SimDevice, ...]:
    one = SimDevice("", lambda rows, width: 0.0, engine=engine, **more)
    return tuple(replace(one, replica_id=f"r{n}") for n in range(count))


def play(
    kinds: Iterable[Kind],
    replicas: int = 1,
    until: float = 60.0,
    *,
    seed: object = 1,
    engine: EngineShape = ENGINE,
    in_turn: bool = False,
    devices: tuple[SimDevice, ...] | None = None,
    check: bool = False,
    leaving: dict[str, float] | None = None,
    **more: Any,
) -> Ran:
    """`in_turn`: by `RoundRobin` instead of the dispatcher; `check`: invariants after each step;
    `leaving`: after how many seconds a tenant's callers leave; `more`: the core's settings."""
    recorder = SimRecorder()
    arrivals = _leaving(
        leaving or {},
        merge(*(kind.arrivals(seed, until) for kind in kinds), key=lambda each: each.at),
    )
    made: list[Any] = []

    def core(settings: DispatcherSettings) -> Any:
        made.append(RoundRobin(settings) if in_turn else StreamScheduler(settings))
        return made[-1]

    def inspect(core: Any) -> None:
        if check and not in_turn:
            check_invariants(core)

    world = World(devices or engines(replicas, engine), core=core, inspect=inspect, built=[])
    run(settings(engine, **more), arrivals, world, recorder)
    return Ran(recorder.outcomes, made, world.built or [])


def _leaving(after_s: dict[str, float], arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
    for arrival in arrivals:
        arrival.leaves_at = arrival.at + after_s.get(arrival.tenant, inf)
        yield arrival


def weighted(
    outcomes: Iterable[SimOutcome], begin: float, end: float, output_weight: float = 2.0
) -> float:
    """Weighted tokens that these were given between two times: a prompt when its first token came,
    the output evenly from there to the answer."""
    total = 0.0
    for outcome in outcomes:
        first, last, tokens = outcome.first_at, outcome.answered_at, outcome.tokens
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
