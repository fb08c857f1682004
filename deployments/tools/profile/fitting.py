"""Derives the cost model, the batch target and the bucket edges from timed batches.

The gateways' cost model is fitted to the median time of each shape of the grid. It is judged by the
batches that were held out: by their medians (the model's own error), and run by run (which includes
the machine's noise). The knee of a length is the smallest batch that serves within `GAIN` of the
most rows a second of any size; larger batches gain less throughput than that, and add latency. The
batch target is the largest knee of all lengths, because the core has one bound for all. The edges
come from the solver that gateways run on their live histograms.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from deployments.tools.profile.sweep import TimedBatch, TimedRun
from routers.api.settings import DispatcherSettings
from routers.estimates.cost.model import Coefficients, CostError, CostModel
from routers.estimates.cost.residuals import at_quantile
from routers.estimates.edge_prices import BatchBounds, LengthShares
from routers.policies.edges import EdgeView
from routers.policies.registry import EDGES
from routers.shared.edges import lattice

GAIN = 0.05


@dataclass(frozen=True, slots=True)
class Point:
    """A batch of `rows` takes `seconds`."""

    rows: int
    seconds: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds


@dataclass(frozen=True, slots=True)
class Knee:
    """Of rows of one width: the knee, the point with the most rows a second, and the largest batch
    within the share of the SLO that a batch may take (1 where none is)."""

    width: int
    at: Point
    best: Point
    in_slo: int
    largest: int

    @property
    def rises(self) -> bool:
        """No size was measured beyond it."""
        return self.at.rows == self.largest


def knees(points: Iterable[tuple[int, int, float]], max_s: float) -> tuple[Knee, ...]:
    """`points`: (rows, width, seconds); `max_s`: what a batch may take. By width, ascending."""
    curves: dict[int, list[Point]] = {}
    for rows, width, seconds in sorted(points):
        curves.setdefault(width, []).append(Point(rows, seconds))
    return tuple(_knee(width, curves[width], max_s) for width in sorted(curves))


def _knee(width: int, curve: list[Point], max_s: float) -> Knee:
    best = max(curve, key=lambda point: point.rows_per_s)
    enough = (1.0 - GAIN) * best.rows_per_s
    at = next(point for point in curve if point.rows_per_s >= enough)
    in_slo = max((point.rows for point in curve if point.seconds <= max_s), default=1)
    return Knee(width, at, best, in_slo, curve[-1].rows)


def target(found: Iterable[Knee], max_size: int) -> int | None:
    """Rows that a batch need not exceed; None where `max_size` rows still gain."""
    rows = max((knee.at.rows for knee in found), default=max_size)
    return rows if rows < max_size else None


Profile = tuple[tuple[int, int, float], ...]


@dataclass(frozen=True, slots=True)
class Fitted:
    """`points`: (rows, width, median seconds), from which gateways start. Relative errors, None of
    nothing: `held` of the held-out shapes' medians, `runs` of each of their runs, `fitted` of the
    medians that were fitted; `noise` of runs against their own shape's median."""

    points: Profile
    coefficients: Coefficients
    held: CostError | None
    runs: CostError | None
    fitted: CostError | None
    noise: CostError | None
    model: CostModel


def fit(
    samples: Iterable[TimedRun], *, pads: bool, max_size: int, max_tokens: int
) -> Fitted | None:
    """None where nothing of the grid was measured."""
    by_batch = runs_of(samples)
    points = _points(by_batch, pads)
    if not points:
        return None
    model = CostModel(0.0, points, max_size=max_size, max_tokens=max_tokens)
    held: list[float] = []
    fitted: list[float] = []
    runs: list[float] = []
    noise: list[float] = []
    for timed, took in by_batch.items():
        said, usual = model.predict(timed.rows, timed.width(pads)), median(took)
        (held if timed.held else fitted).append(_off(said, usual))
        if timed.held:
            runs += [_off(said, each) for each in took]
        if len(took) > 1:
            noise += [_off(usual, each) for each in took]
    return Fitted(
        points, model.coefficients, _summed(held), _summed(runs), _summed(fitted), _summed(noise),
        model,
    )  # fmt: skip


def runs_of(samples: Iterable[TimedRun]) -> dict[TimedBatch, list[float]]:
    """Seconds of each timed's runs."""
    found: dict[TimedBatch, list[float]] = defaultdict(list)
    for each in samples:
        found[each.timed].append(each.took_s)
    return found


def _points(by_batch: dict[TimedBatch, list[float]], pads: bool) -> Profile:
    grid = {
        (timed.rows, timed.width(pads)): median(took)
        for timed, took in by_batch.items()
        if not timed.held
    }
    return tuple((*shape, took_s) for shape, took_s in sorted(grid.items()))


def _off(said_s: float, took_s: float) -> float:
    return abs(said_s - took_s) / took_s


def _summed(off: list[float]) -> CostError | None:
    ordered = sorted(off)
    if not ordered:
        return None
    return CostError(at_quantile(ordered, 0.5), at_quantile(ordered, 0.99), len(ordered))


def edges_for(
    core: DispatcherSettings, lengths: Sequence[int], fitted: Fitted, replicas: int
) -> tuple[int, ...]:
    """Ascending, the last is the longest row; () where the core would not choose any."""
    buckets, edges = core.buckets, core.bucket_edges
    if not (buckets.adaptive and core.pads and not buckets.fixed_shapes):
        return ()
    points = lattice(edges[-1], edges)
    weights = [0.0] * len(points)
    for length in lengths:
        weights[min(bisect_left(points, length), len(points) - 1)] += 1.0
    known = LengthShares.of(points, weights)
    cost, bounds = fitted.model.predict, BatchBounds.of(core)
    view = EdgeView(known, edges, buckets.max_edges, cost, bounds, float(replicas))
    found = EDGES[core.policies.edges]().best(view)
    return () if found is None else found.edges
