"""Measures one system in one round, and stores the result.

A round searches the highest rate at which the system answers in time (its peak). Then it measures
the system at half of its peak, at a rate that is the same for all systems, at multiples of its
peak, and with a victim beside a noisy neighbour. Systems take turns, in reverse order every other
round, so that drift of the machine affects all alike. A system's peak is the median of its rounds
so far. Each round is written at once, so that an interrupted run loses none.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtests.benches.compare.loads import VICTIM, LoadTrial, mix, noisy, played
from loadtests.benches.compare.systems import Server, System
from loadtests.benches.compare.works import Workload, cost_ms
from loadtests.goodput import LEAST, Search, search
from loadtests.peers.options import DEVICE

FOLDER = Path("out/bench/compare")
MULTIPLES = (1.5, 2.0, 3.0)
FULL_ROUNDS = 2  # to save time, further rounds only search, and measure at half of the peak
WITHIN = 0.1
CLEAR_MISS = 0.7
AROUND = (0.85, 1.2)  # further searches look between these multiples of the peak so far
CAPACITY = 980.0  # requests of the mix a second, in sorted and full batches
VICTIM_SHARE = 0.1  # of the device
FLOOD_TIMES = 10.0  # the noisy tenant's load, as a multiple of the victim's part of the device
LONG_LENGTH = 384


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


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure. `seconds`: of a trial without its warm-up. `multiples`: of the peak, for
    overload."""

    seconds: float
    multiples: tuple[float, ...] = MULTIPLES


def flood_of(work: Workload) -> tuple[float, float]:
    """Requests a second of the victim and of its neighbour."""
    if work.name != DEVICE:
        return work.start_rate / 4, work.start_rate / 2
    long_capacity = 1e3 / cost_ms(LONG_LENGTH)
    return CAPACITY * VICTIM_SHARE, long_capacity * VICTIM_SHARE * FLOOD_TIMES


def round_of(
    system: System, work: Workload, number: int, before: Sequence[Round], effort: Effort
) -> Round:
    with Server(system, work) as server:
        server.check()
        asked = search_of(work, before)
        trials = RoundTrials(server, number * 1000, effort.seconds)
        trials.at(
            asked.low / 2, work.warm_s
        )  # systems that learn see the mix before they are judged
        found = search(trials.share_at, asked)
        holds = found.holds or min(trial.rate for trial in found.trials)
        multiples = effort.multiples if number < FULL_ROUNDS else ()
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
            over={f"{times:g}": trials.at(peak * times) for times in multiples},
            victim=trials.beside(*flood_of(work)) if number < FULL_ROUNDS else None,
        )


def search_of(work: Workload, before: Sequence[Round]) -> Search:
    if not before:
        return Search(low=work.start_rate, repeats=1, within=WITHIN)
    peak = statistics.median(each.holds for each in before)
    return Search(low=peak * AROUND[0], high=peak * AROUND[1], repeats=1, within=WITHIN)


@dataclass(slots=True)
class RoundTrials:
    """Runs trials one after another on one server, each with its own arrivals, each from idle."""

    server: Server
    seed: int
    seconds: float

    def at(self, rate: float, seconds: float | None = None) -> LoadTrial:
        self.seed += 1
        trial = played(self.server, mix(rate, seconds or self.seconds, self.seed))
        self._over(f"{rate:7.1f}/s", trial)
        return trial

    def share_at(self, rate: float) -> float:
        """The share in time at a rate. If it misses narrowly, the trial is repeated and the better
        result counts, since a short disturbance of the machine only makes a result worse."""
        share = self.at(rate).share
        return max(share, self.at(rate).share) if CLEAR_MISS < share < LEAST else share

    def beside(self, rate: float, flood: float) -> LoadTrial:
        self.seed += 1
        trial = played(self.server, noisy(rate, flood, self.seconds, self.seed), VICTIM)
        self._over("victim   ", trial)
        return trial

    def _over(self, what: str, trial: LoadTrial) -> None:
        settled = self.server.settle()
        print(
            f"  {self.server.system.name:>22} {what} in time {trial.share:6.1%} "
            f"p50 {trial.p50_ms:6.1f} p99 {trial.p99_ms:6.1f} ms, CPU {trial.cpu_ms:5.2f} ms, "
            f"lag p99 {trial.lag_p99_ms:5.1f} ms {trial.statuses}"
            f"{'' if settled else ' (started afresh)'}",
            file=sys.stderr,
        )


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
    over = {times: _trial(trial) for times, trial in found["over"].items()}
    victim = found["victim"] and _trial(found["victim"])
    searched = tuple((rate, share) for rate, share in found["searched"])
    always = {name: _trial(found[name]) for name in ("half", "same")}
    return Round(**found | always | {"over": over, "victim": victim, "searched": searched})


def _trial(found: dict[str, Any]) -> LoadTrial:
    by_length = {edge: (offered, kept_) for edge, (offered, kept_) in found["by_length"].items()}
    return LoadTrial(**found | {"by_length": by_length})
