"""Measures one system in one round, and stores the result.

A round searches the highest rate at which the system answers in time (its peak). Then it measures
the system at half of its peak, at a rate that is the same for all systems, at multiples of its
peak, and with a victim tenant that sends the mix beside a noisy neighbour that floods with long
rows. A system's peak is the median of its rounds so far. Each round is written at once, so that an
interrupted run loses none.

A load is Poisson arrivals of the ragged mix (open loop). Callers give a request up after 1 s.
Latencies count from when a request was due to be sent, over all offered requests: one without an
answer counts with the second that its caller waited.
"""

from __future__ import annotations

import json
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtests.benches.compare.shares import NAMES, cost_ms
from loadtests.benches.compare.systems import Server, System, Workload
from loadtests.benches.played import CONNECTIONS, Played, percentile, played
from loadtests.benches.runner import say
from loadtests.benches.server import BENCH_DIR
from loadtests.client.http1 import Target, render
from loadtests.client.player import PlayerSettings
from loadtests.goodput import LEAST, Search, search
from loadtests.peers.options import DEVICE
from loadtests.traffic import scenario_file
from loadtests.traffic.plan import Planned
from loadtests.traffic.scenario import Scenario
from loadtests.traffic.workload import RAGGED_MIX

FOLDER = BENCH_DIR / "compare"
HALF, SAME, VICTIM, NOISY = "half", "same", "victim", "noisy"
MULTIPLES = (1.5, 2.0, 3.0)
FULL_ROUNDS = 2  # to save time, further rounds only search, and measure at half of the peak
WITHIN = 0.1
CLEAR_MISS = 0.7
AROUND = (0.85, 1.2)  # further searches look between these multiples of the peak so far
CAPACITY = 980.0  # requests of the mix a second, in sorted and full batches
VICTIM_SHARE = 0.1  # of the device
FLOOD_TIMES = 10.0  # the noisy tenant's load, as a multiple of the victim's part of the device
LONG_LENGTH = 384
WARMUP_S = 1.0
TIMEOUT_S = 1.0
BANDS = [{"share": b.share, "low": b.low, "high": b.high} for b in RAGGED_MIX]
LONG = {"bands": BANDS[-1:]}


@dataclass(frozen=True, slots=True)
class LoadTrial:
    """The result of one load."""

    rate: float
    seconds: float
    offered: int
    in_time: int
    p50_ms: float
    p99_ms: float
    by_length: dict[str, tuple[int, int]]  # by a bucket's longest length: offered, in time
    statuses: dict[str, int]
    lag_p99_ms: float  # how late this client sent
    cpu_ms: float  # CPU time of the server's processes for each request that was sent

    @property
    def share(self) -> float:
        return self.in_time / self.offered if self.offered else 1.0

    @property
    def in_time_per_s(self) -> float:
        return self.in_time / self.seconds


@dataclass(frozen=True, slots=True)
class Round:
    """The results of one round."""

    work: str
    system: str
    number: int
    holds: float
    fails: float  # the lowest rate that failed; infinite if none did
    peak: float
    searched: tuple[tuple[float, float], ...]
    half: LoadTrial
    same: LoadTrial
    over: dict[str, LoadTrial] = field(default_factory=dict)
    victim: LoadTrial | None = None

    def trial(self, which: str) -> LoadTrial | None:
        """`half`, `same`, `victim`, or a multiple of the peak."""
        named = {HALF: self.half, SAME: self.same, VICTIM: self.victim}
        return named[which] if which in named else self.over.get(which)


# ---- loads ---------------------------------------------------------------------------------------


def mix(rate: float, seconds: float, seed: int) -> Scenario:
    return scenario(seconds, seed, {"default": {"arrivals": {"rate": rate}}})


def noisy(rate: float, flood: float, seconds: float, seed: int) -> Scenario:
    neighbour = {"arrivals": {"rate": flood}, "lengths": LONG}
    return scenario(seconds, seed, {VICTIM: {"arrivals": {"rate": rate}}, NOISY: neighbour})


def scenario(seconds: float, seed: int, tenants: dict[str, Any]) -> Scenario:
    times = {"seed": seed, "duration_s": seconds, "warmup_s": WARMUP_S}
    return scenario_file.check({**times, "lengths": {"bands": BANDS}, "tenants": tenants})


def flood_of(work: Workload) -> tuple[float, float]:
    """Requests a second of the victim and of its neighbour."""
    if work.name != DEVICE:
        return work.start_rate / 4, work.start_rate / 2
    long_capacity = 1e3 / cost_ms(LONG_LENGTH)
    return CAPACITY * VICTIM_SHARE, long_capacity * VICTIM_SHARE * FLOOD_TIMES


def trial_of(found: Played, tenant: str = "") -> LoadTrial:
    """Of all requests, or of those of `tenant`."""
    ends = [end for end in found.ends if tenant in ("", end.planned.tenant)]
    latencies_ms = [1e3 * (end.latency_s if end.ok else TIMEOUT_S) for end in ends]
    edges = [next(e for e in NAMES if end.planned.lengths[0] <= int(e)) for end in ends]
    offered = Counter(edges)
    kept = Counter(edge for edge, end in zip(edges, ends, strict=True) if found.kept(end))
    server_s = sum(cpu_s for role, cpu_s in found.cpu_s.items() if role != "client")
    return LoadTrial(
        rate=len(ends) / found.seconds,
        seconds=found.seconds,
        offered=len(ends),
        in_time=kept.total(),
        p50_ms=percentile(latencies_ms, 50),
        p99_ms=percentile(latencies_ms, 99),
        by_length={edge: (offered[edge], kept[edge]) for edge in NAMES},
        statuses=found.statuses,
        lag_p99_ms=found.lag_ms(99),
        cpu_ms=server_s * 1e3 / found.tries,
    )


def renderer(system: System, work: Workload, url: str) -> Callable[[Planned], bytes]:
    """Renders requests: the same ids for each length, but always another text, so that no cache of
    texts answers."""
    target, rng, adapter = Target.parse(url), random.Random(24), system.adapter
    bodies: dict[int, bytes] = {}

    def request(planned: Planned) -> bytes:
        length = planned.lengths[0]
        if length not in bodies or not work.fixed_items:
            bodies[length] = adapter.encode(work.item(length, rng))
        named = system.knows_tenants and planned.tenant != "default"
        headers = {"x-tenant": planned.tenant} if named else None
        return render(target, bodies[length], headers=headers)

    return request


# ---- a round -------------------------------------------------------------------------------------


@dataclass(slots=True)
class RoundTrials:
    """Runs trials one after another on one server, each with its own arrivals, each from idle."""

    server: Server
    seed: int
    seconds: float

    def at(self, rate: float, seconds: float | None = None) -> LoadTrial:
        return self._played(mix(rate, seconds or self.seconds, self.seed), f"{rate:7.1f}/s")

    def share_at(self, rate: float) -> float:
        """The share in time at a rate. If it misses narrowly, the trial is repeated and the better
        result counts, since a short disturbance of the machine only makes a result worse."""
        share = self.at(rate).share
        return max(share, self.at(rate).share) if CLEAR_MISS < share < LEAST else share

    def beside(self, rate: float, flood: float) -> LoadTrial:
        return self._played(noisy(rate, flood, self.seconds, self.seed), VICTIM, VICTIM)

    def _played(self, of: Scenario, what: str, tenant: str = "") -> LoadTrial:
        self.seed += 1
        server = self.server
        stand = PlayerSettings(
            Target.parse(server.url),
            renderer(server.system, server.work, server.url),
            connections=CONNECTIONS,
            timeout_s=TIMEOUT_S,
        )
        trial = trial_of(played(server.running, of, stand, server.work.slo_s), tenant)
        settled = server.settle()
        say(
            f"{server.system.name:>22} {what} in time {trial.share:6.1%} p50 {trial.p50_ms:6.1f} "
            f"p99 {trial.p99_ms:6.1f} ms, CPU {trial.cpu_ms:5.2f} ms, lag p99 "
            f"{trial.lag_p99_ms:5.1f} ms {trial.statuses}{'' if settled else ' (started afresh)'}"
        )
        return trial


def round_of(
    system: System,
    work: Workload,
    number: int,
    before: Sequence[Round],
    seconds: float,
    multiples: Sequence[float] = MULTIPLES,
) -> Round:
    """`seconds`: of a trial without its warm-up. `multiples`: of the peak, for overload."""
    full = number < FULL_ROUNDS
    with Server(system, work) as server:
        server.check()
        asked = search_of(work, before)
        trials = RoundTrials(server, number * 1000 + 1, seconds)
        trials.at(asked.low / 2, work.warm_s)  # what learns sees the mix before it is judged
        found = search(trials.share_at, asked)
        holds = found.holds or min(trial.rate for trial in found.trials)
        peak = statistics.median([*(each.holds for each in before), holds])
        return Round(
            work=work.name,
            system=system.name,
            number=number,
            holds=holds,
            fails=found.fails,
            peak=peak,
            searched=tuple((trial.rate, trial.in_slo) for trial in found.trials),
            half=trials.at(peak / 2),
            same=trials.at(work.same_rate),
            over={f"{times:g}": trials.at(peak * times) for times in multiples if full},
            victim=trials.beside(*flood_of(work)) if full else None,
        )


def search_of(work: Workload, before: Sequence[Round]) -> Search:
    if not before:
        return Search(low=work.start_rate, repeats=1, within=WITHIN)
    peak = statistics.median(each.holds for each in before)
    return Search(low=peak * AROUND[0], high=peak * AROUND[1], repeats=1, within=WITHIN)


# ---- keeping -------------------------------------------------------------------------------------


def keep(round_: Round, folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{round_.work}-{round_.system.replace('@', '-')}-{round_.number}.json"
    (folder / name).write_text(json.dumps(asdict(round_)) + "\n")


def kept(folder: Path = FOLDER) -> list[Round]:
    return [_round(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]


def forget(works: Iterable[str], folder: Path = FOLDER) -> None:
    """Deletes stored rounds of these kinds of work, and keeps those of others."""
    for work in works:
        for path in folder.glob(f"{work}-*.json"):
            path.unlink()


def _round(found: dict[str, Any]) -> Round:
    trials = {name: _trial(found[name]) for name in (HALF, SAME)}
    over = {times: _trial(trial) for times, trial in found["over"].items()}
    victim = found["victim"] and _trial(found["victim"])
    searched = tuple((rate, share) for rate, share in found["searched"])
    return Round(**found | trials | {"over": over, "victim": victim, "searched": searched})


def _trial(found: dict[str, Any]) -> LoadTrial:
    by_length = {edge: (offered, kept_) for edge, (offered, kept_) in found["by_length"].items()}
    return LoadTrial(**found | {"by_length": by_length})
