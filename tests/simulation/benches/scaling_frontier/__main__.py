"""What does it cost to miss the SLO seldom, by whom the number of replicas is decided?

`python -m tests.simulation.benches.scaling_frontier`: misses, of all that were offered, against
replica-hours, on virtual time: Headrace's own autoscaler (the production core) beside Ray Serve's
policy (its real code), HPA, KPA, fixed numbers and a clairvoyant, each at several targets, on a day
with bursts, on hours whose bursts come back, and on a recorded trace if it is named; with starts of
35 s and of 3 s; and ours for several models that share a pool whose replicas become any of them in
3 s. Every policy decides on the same requests, served by the same queue. A full sweep takes about
an hour and a half of one processor; what was measured is kept, and measured again only after
`--again SIDE`. What the fast model leaves out is compared with the router's simulator first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path

from loadtests.benches.runner import Bench, BenchOption, BenchRun, Options, say
from loadtests.results.report_table import REPORT_DIR
from tests.simulation.benches.scaling_frontier import agreement, report
from tests.simulation.benches.scaling_frontier.cells import (
    POOLED,
    Cell,
    Kept,
    Setting,
    clairvoyant_settings,
    informed_settings,
    measured,
    our_settings,
    pooled,
    rivals_settings,
)
from tests.simulation.benches.scaling_frontier.load import Load, day, hourly, recorded
from tests.simulation.benches.scaling_frontier.world import Starts

DAY, HOURLY, RECORDED = "day", "hourly", "recorded"
DEDICATED, WARM = Starts(35.0), Starts(3.0)
KNEES = (0.95, 0.85, 0.7, 0.55)


def loads(options: Options) -> Iterator[str]:
    yield from (each for each in options.traces if each != RECORDED)
    path = options.recorded
    if path is None or not path.exists():
        say(f"SKIPPED: the recorded trace, since there is no file {path}; name it with --recorded")
    elif RECORDED in options.traces:
        yield RECORDED


@cache
def load_of(trace: str, seed: int, path: Path | None) -> Load:
    if trace == RECORDED:
        assert path is not None
        return recorded(path, seed)
    return day(seed) if trace == DAY else hourly(seed)


def settings(trace: str, options: Options) -> list[Setting]:
    every = [*rivals_settings(), *clairvoyant_settings(), *our_settings(options.knees)]
    if trace != RECORDED:
        every += informed_settings()
    return [each for each in every if not options.sides or each.side in options.sides]


def runs(options: Options) -> Iterator[BenchRun]:
    if options.agreement:
        for each in agreement.compared():
            yield BenchRun(report.AGREEMENT, each)
    kept = Kept(options.kept)
    for trace in loads(options):
        for seed in range(1, options.seeds + 1):
            load_of.cache_clear()
            for start_s in options.starts:
                for setting in settings(trace, options):
                    cell = _cell(kept, options, trace, setting, Starts(start_s), seed)
                    if cell is not None:
                        yield BenchRun(setting.side, cell, (trace, start_s))
    yield from _with_pool(kept, options)


def _cell(
    kept: Kept, options: Options, trace: str, setting: Setting, starts: Starts, seed: int
) -> Cell | None:
    """None: it is not kept, and nothing is to be measured."""
    cell = kept.cells.get((trace, starts.median_s, setting.side, setting.value, seed))
    if _is_due(cell, setting.side, options):
        load = load_of(trace, seed, options.recorded)
        cell = measured(trace, load, setting, starts, seed)
        _keep(kept, cell)
    return cell


def _is_due(cell: Cell | None, side: str, options: Options) -> bool:
    return not options.report_only and (cell is None or side in options.again)


def _keep(kept: Kept, cell: Cell) -> None:
    kept.add(cell)
    say(f"{cell.trace} {cell.start_s:g} s {cell.side} {cell.value:g} seed {cell.seed}: "
        f"{100 * cell.missed / cell.offered:.3f} % missed, {cell.replica_h:.0f} h")  # fmt: skip


def _with_pool(kept: Kept, options: Options) -> Iterator[BenchRun]:
    """Several models with days of their own; dedicated replicas start in 35 s, the pool's in 3."""
    if options.sides and POOLED not in options.sides:
        return
    days: list[Load] = []
    for size in options.pools:
        cell = kept.cells.get((DAY, DEDICATED.median_s, POOLED, size, 0))
        if _is_due(cell, POOLED, options):
            days = days or [day(seed) for seed in range(1, options.models + 1)]
            cell = pooled(DAY, days, size, DEDICATED, WARM)
            _keep(kept, cell)
        if cell is not None:
            yield BenchRun(POOLED, cell, (DAY, DEDICATED.median_s))


BENCH = Bench(
    name="scaling_frontier",
    about=__doc__,
    title="Autoscaling: misses against replica-hours, on virtual time",
    options={
        "traces": BenchOption([DAY, HOURLY, RECORDED]),
        "recorded": BenchOption(None, "a recorded trace (CSV)", parse=Path),
        "seeds": BenchOption(5),
        "starts": BenchOption([35.0, 3.0], "seconds"),
        "knees": BenchOption(list(KNEES), "of our own policy"),
        "pools": BenchOption(
            [8, 16, 24], "replicas of a pool that `models` models share; none: no pool"
        ),
        "models": BenchOption(8),
        "sides": BenchOption([], "only these"),
        "again": BenchOption((), "measure that side again"),
        "report_only": BenchOption(False, "of what is kept; measure nothing"),
        "kept": BenchOption(REPORT_DIR / "scaling_frontier" / "cells.jsonl", parse=Path),
        "agreement": BenchOption(True, "with the router's simulator"),
    },
    measure=runs,
    tables=report.tables,
    thresholds=report.thresholds,
    pictures=report.pictures,
    notes=report.NOTES,
    record=asdict,
    package="tests.simulation.benches",
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
