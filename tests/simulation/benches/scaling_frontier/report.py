"""Tables, promises and pictures of what the frontier's bench measured."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from statistics import mean

from loadtests.benches.runner import Options, Runs
from loadtests.report.plots import Axis, Series, picture
from loadtests.report.scale import linear, logarithmic
from loadtests.results.report_table import BenchVerdict, Picture, Table, at_least, at_most
from tests.simulation.benches.scaling_frontier.agreement import WITHIN
from tests.simulation.benches.scaling_frontier.cells import (
    CLAIRVOYANT,
    INFORMED,
    OURS,
    POOLED,
    RAY_DEFAULT,
    Cell,
)
from tests.simulation.benches.scaling_frontier.frontier import (
    LEAST,
    Point,
    better_on_both,
    frontier,
    gains,
    misses_at,
)

AGREEMENT = "agreement"
NOTES = (
    "Misses are of all that was offered, refusals included; hours are of replicas from the order "
    "to the exit, a mean over the seeds. At equal hours, misses of a side are interpolated "
    "geometrically between its settings.",
)
NO_RIVALS = (OURS, POOLED, INFORMED, CLAIRVOYANT)
Case = tuple[str, float]


def cases(done: Runs) -> list[Case]:
    found = {run.case for run in done if run.side != AGREEMENT}
    return sorted(found, key=lambda case: (case[0], -case[1]))


def points(done: Runs, case: Case) -> dict[str, list[Point]]:
    """By side, over the seeds that all settings have; a pool stands for itself."""
    cells: dict[str, dict[float, list[Cell]]] = {}
    for run in done:
        if run.side != AGREEMENT and run.case == case:
            cells.setdefault(run.side, {}).setdefault(run.result.value, []).append(run.result)
    every = [found for side, values in cells.items() if side != POOLED for found in values.values()]
    seeds = set.intersection(*({cell.seed for cell in found} for found in every)) if every else {0}
    return {
        side: [
            _point(f"{side} {value:g}", [cell for cell in found if cell.seed in {0, *seeds}])
            for value, found in values.items()
        ]
        for side, values in cells.items()
    }


def _point(name: str, cells: list[Cell]) -> Point:
    missed, offered = sum(c.missed for c in cells), sum(c.offered for c in cells)
    return Point(name, mean(c.replica_h for c in cells), missed / max(1, offered))


def rivals_of(sides: dict[str, list[Point]]) -> list[Point]:
    return [p for side, ps in sides.items() if side not in NO_RIVALS for p in ps]


# ---- tables --------------------------------------------------------------------------------------


def tables(done: Runs, options: Options) -> Iterator[Table]:
    yield from _agreement(done)
    for case in cases(done):
        yield _frontiers(done, case)
        yield _at_equal_hours(points(done, case), case)


def _agreement(done: Runs) -> Iterator[Table]:
    rows = tuple(
        (a.replicas, f"{a.utilisation:.0%}", f"{100 * a.fast:.2f} %", f"{100 * a.real:.2f} %")
        for a in done.of(AGREEMENT).results
    )
    if rows:
        headers = ("replicas", "utilisation", "missed, fast model", "missed, dispatcher simulated")
        yield Table("A fixed number of replicas, Poisson arrivals", headers, rows)


def _title(case: Case) -> str:
    return f"Trace `{case[0]}`, start {case[1]:g} s"


def _frontiers(done: Runs, case: Case) -> Table:
    rows = []
    for side, found in points(done, case).items():
        cells = [run.result for run in done.of(side, case)]
        line = " · ".join(f"{100 * p.misses:.3g} @ {p.hours:.0f}" for p in _by_hours(found))
        rows.append((side, line, mean(c.changes for c in cells), mean(c.reversals for c in cells)))
    headers = ("", "% missed @ replica-hours", "changes", "reversals within 10 min")
    return Table(f"{_title(case)}: every setting", headers, tuple(rows))


def _by_hours(found: list[Point]) -> list[Point]:
    return sorted(found, key=lambda point: point.hours)


def _at_equal_hours(sides: dict[str, list[Point]], case: Case) -> Table:
    rivals = rivals_of(sides)
    informed, clairvoyant = sides.get(INFORMED, []), sides.get(CLAIRVOYANT, [])
    rows = []
    for point in [*frontier(sides.get(OURS, [])), *_by_hours(sides.get(POOLED, []))]:
        ray, best = (misses_at(each, point.hours) for each in (sides.get(RAY_DEFAULT, []), rivals))
        rows.append(
            (
                point.name, point.hours, f"{100 * point.misses:.3g} %", _share(ray), _share(best),
                best / max(LEAST, point.misses) if best < inf else None,
                _share(misses_at(informed, point.hours)),
                _share(misses_at(clairvoyant, point.hours)),
            )
        )  # fmt: skip
    headers = (
        "", "replica-hours", "missed", "Ray Serve, its delays", "best rival",
        "best rival's are ×", "told the true rate", "clairvoyant",
    )  # fmt: skip
    return Table(f"{_title(case)}: at our hours", headers, tuple(rows))


def _share(misses: float) -> str:
    return f"{100 * misses:.3g} %" if misses < inf else "–"


# ---- promises ------------------------------------------------------------------------------------


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    found = done.of(AGREEMENT).results
    if found:
        most = max(abs(each.fast - each.real) for each in found)
        yield at_most("fast model and dispatcher differ, of what is offered", most, WITHIN)
    for case in cases(done):
        yield from _promised(points(done, case), case)
    yield from _were_starts_short(done)


def _were_starts_short(done: Runs) -> Iterator[BenchVerdict]:
    """Ours with the shortest starts beside rivals with the longest, where a trace has both."""
    for trace in sorted({case[0] for case in cases(done)}):
        starts = [start_s for name, start_s in cases(done) if name == trace]
        if len(starts) > 1:
            slow, quick = (points(done, (trace, pick(starts))) for pick in (max, min))
            gain = _typical(gains(quick.get(OURS, []), rivals_of(slow)))
            claim = (
                f"Trace `{trace}`: were all our starts of {min(starts):g} s, times fewer misses "
                f"than the best rival's at {max(starts):g} s"
            )
            yield at_least(claim, gain, 5.0)


def _promised(sides: dict[str, list[Point]], case: Case) -> Iterator[BenchVerdict]:
    ours, rivals, name = sides.get(OURS, []), rivals_of(sides), _title(case)
    if not ours or not rivals:
        return
    yield at_most(f"{name}: rivals' points better on both axes",
                  float(len(better_on_both(rivals, ours))), 0.0)  # fmt: skip
    ray = _typical(gains(ours, sides.get(RAY_DEFAULT, [])))
    yield at_least(f"{name}: times fewer misses than Ray Serve's delays at equal hours", ray, 8.0)
    yield at_least(f"{name}: times fewer misses than the best rival at equal hours",
                   _typical(gains(ours, rivals)), 2.0)  # fmt: skip
    if sides.get(POOLED):
        most = max(gain for _, gain in gains(sides[POOLED], rivals))
        yield at_least(f"{name}, pool: times fewer misses than the best rival at equal hours",
                       most, 5.0)  # fmt: skip


def _typical(found: list[tuple[float, float]]) -> float:
    """The median over our settings; NaN of none."""
    ordered = sorted(gain for _, gain in found)
    return ordered[len(ordered) // 2] if ordered else float("nan")


# ---- pictures ------------------------------------------------------------------------------------


def pictures(done: Runs) -> Iterator[Picture]:
    for case in cases(done):
        sides = points(done, case)
        title = f"{case[0]}, start {case[1]:g} s"
        name = f"scaling-{case[0]}-{case[1]:g}s"
        yield Picture(name, f"Misses against replica-hours: {title}", _drawn(title, sides))


def _drawn(title: str, sides: dict[str, list[Point]]) -> str:
    order = sorted(
        sides, key=lambda side: (side not in (OURS, POOLED), side in (INFORMED, CLAIRVOYANT))
    )
    series = [
        Series(side, [(p.hours, 100 * max(1e-5, p.misses)) for p in _by_hours(sides[side])])
        for side in order
    ]
    every = [point for each in series for point in each.points]
    hours = [point[0] for point in every]
    x = Axis("Replica-hours", linear(hours, 50 * (min(hours, default=0.0) // 50)))
    y = Axis("% missed", logarithmic([point[1] for point in every]))
    return picture(title, series, x, y)
