"""How often does the number of replicas change while demand does not?

`python -m tests.simulation.benches.scaling_flapping`: flat Poisson load that keeps 1, 5 and 20
replicas busy, counted once it has settled (each seed at another level, a few percent off), and of
many periods, the worst of which counts: a sawtooth, from a third of its mean up to five thirds and
then down at once, and pulses of three times the rate for 20 s. Headrace's autoscaler beside HPA,
KPA and Ray Serve's policy, on the fast model of `scaling_frontier`, starts of 35 s. Decided by the
seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from loadtests.benches.runner import Bench, BenchOption, BenchRun, Options, Runs, say
from loadtests.results.report_table import BenchVerdict, Table, at_most
from tests.simulation.benches.scaling_frontier.load import Load, flat, pulses, sawtooth
from tests.simulation.benches.scaling_frontier.ours import Headrace
from tests.simulation.benches.scaling_frontier.rivals import Hpa, Kpa
from tests.simulation.benches.scaling_frontier.world import Policy, Starts, moves, play

STARTS = Starts(35.0)
FLAT, SAWTOOTH, PULSES = "flat", "sawtooth", "pulses"
OURS = "Headrace"
BUSY = (1.0, 5.0, 20.0)
PERIODS_S = (30.0, 60.0, 120.0, 240.0, 480.0, 900.0, 1800.0, 3600.0)
MEAN_BUSY = 5.0
SETTLE_S = 3600.0
PULSES_S = (60.0, 120.0, 180.0, 300.0, 600.0, 1500.0)
MAX_FLAT, MAX_SAWTOOTH = 1.0, 20.0  # changes an hour
MAX_PULSES = 24.0  # reversals an hour


@dataclass(frozen=True, slots=True)
class Moves:
    """Of a run, after it has settled, an hour: changes and reversals within ten minutes; replicas:
    from the least to the most; misses: share of the whole run."""

    changes: float
    reversals: float
    least: int
    most: int
    misses: float


def _ray(load: Load) -> Policy:
    from tests.simulation.benches.scaling_frontier.ray_policy import tuned  # takes 2 s

    return tuned(0.7)


POLICIES: dict[str, Callable[[Load], Policy]] = {
    OURS: lambda load: Headrace(load, STARTS),
    "HPA, utilisation 0.7": lambda load: Hpa(0.7),
    "KPA 0.7": lambda load: Kpa(0.7),
    "Ray Serve, tuned 0.7": _ray,
}


def moved(load: Load, policy: Policy, seed: int, settle_s: float = SETTLE_S) -> Moves:
    played = play(load, policy, STARTS, seed, max(1, round(1.5 * load.busy)))
    settled = played.targets[int(settle_s) :]
    hours = len(settled) / 3600.0
    changes, reversals = moves(settled)
    least, most = int(settled.min()), int(settled.max())
    return Moves(changes / hours, reversals / hours, least, most, played.misses)


def loads(options: Options) -> Iterator[tuple[tuple[str, float], int, Load]]:
    seconds = SETTLE_S + 3600.0 * options.hours
    for busy in BUSY:
        for seed in range(1, options.seeds + 1):
            yield (FLAT, busy), seed, flat(busy * (1.0 + 0.02 * (seed - 3)), seconds, seed)
    for period_s in PERIODS_S:
        yield (SAWTOOTH, period_s), 1, sawtooth(MEAN_BUSY, period_s, seconds, 1)
    for period_s in PULSES_S:
        yield (PULSES, period_s), 1, pulses(MEAN_BUSY, period_s, seconds, 1)


def runs(options: Options) -> Iterator[BenchRun]:
    for case, seed, load in loads(options):
        for side, policy in POLICIES.items():
            found = moved(load, policy(load), seed)
            say(f"{load.name} seed {seed}, {side}: {found.changes:.1f} changes an hour, "
                f"{found.reversals:.1f} reversals")  # fmt: skip
            yield BenchRun(side, found, case)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    yield _table(done, FLAT, BUSY, "Flat load that keeps so many replicas busy")
    yield _table(done, SAWTOOTH, PERIODS_S, "Sawtooth of so many seconds")
    yield _table(done, PULSES, PULSES_S, "A pulse of 20 s each so many seconds")


def _table(done: Runs, kind: str, values: tuple[float, ...], title: str) -> Table:
    rows = []
    for value in values:
        for side in POLICIES:
            mine = done.of(side, (kind, value))
            worst = max(mine.results, key=lambda each: each.changes)
            rows.append(
                (
                    f"{value:g}", side, worst.changes, worst.reversals,
                    f"{worst.least}–{worst.most}", f"{100 * mine.median('misses'):.3g} %",
                )
            )  # fmt: skip
    headers = ("", "", "changes an hour", "reversals an hour", "replicas", "missed")
    return Table(f"{title}; the worst seed", headers, tuple(rows))


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for busy in BUSY:
        worst = max(each.changes for each in done.of(OURS, (FLAT, busy)).results)
        yield at_most(f"{busy:g} busy: changes an hour after settling", worst, MAX_FLAT)
    saw = {p: done.of(OURS, (SAWTOOTH, p)).median("changes") for p in PERIODS_S}
    worst_s = max(saw, key=saw.__getitem__)
    yield at_most(f"sawtooth, worst period ({worst_s:g} s): changes an hour", saw[worst_s],
                  MAX_SAWTOOTH)  # fmt: skip
    pulsed = {p: done.of(OURS, (PULSES, p)).median("reversals") for p in PULSES_S}
    worst_s = max(pulsed, key=pulsed.__getitem__)
    yield at_most(f"pulses, worst period ({worst_s:g} s): reversals an hour", pulsed[worst_s],
                  MAX_PULSES)  # fmt: skip


BENCH = Bench(
    name="scaling_flapping",
    about=__doc__,
    title="Autoscaling: changes while demand is flat, and on a sawtooth",
    options={"seeds": BenchOption(5), "hours": BenchOption(2.0, "counted")},
    measure=runs,
    tables=tables,
    thresholds=thresholds,
    record=asdict,
    package="tests.simulation.benches",
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
