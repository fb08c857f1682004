"""What does a batch cost, and how wrong is that where it was not fitted?

The cost model that gateways plan with, given the medians of the grid's shapes, and judged by the
batches that were held out: by their medians, which is the model's own error, and run by run, which
has the machine's noise in it. How far runs of one shape lie apart says which of the two it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from deployments.tools.profile.plan import Trial
from deployments.tools.profile.sweep import Sample
from routers.cost.model import Coefficients, CostError, CostModel
from routers.cost.residuals import at_quantile

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

    def seconds(self, rows: int, width: int) -> float:
        return self.model.predict(rows, width)


def fit(samples: Iterable[Sample], *, pads: bool, max_size: int, max_tokens: int) -> Fitted | None:
    """None where nothing of the grid was measured."""
    by_trial = runs_of(samples)
    points = _points(by_trial, pads)
    if not points:
        return None
    model = CostModel(0.0, points, max_size=max_size, max_tokens=max_tokens)
    held: list[float] = []
    fitted: list[float] = []
    runs: list[float] = []
    noise: list[float] = []
    for trial, took in by_trial.items():
        said, usual = model.predict(trial.rows, trial.width(pads)), median(took)
        (held if trial.held else fitted).append(_off(said, usual))
        if trial.held:
            runs += [_off(said, each) for each in took]
        if len(took) > 1:
            noise += [_off(usual, each) for each in took]
    return Fitted(
        points, model.coefficients, _summed(held), _summed(runs), _summed(fitted), _summed(noise),
        model,
    )  # fmt: skip


def runs_of(samples: Iterable[Sample]) -> dict[Trial, list[float]]:
    """Seconds of each trial's runs."""
    found: dict[Trial, list[float]] = defaultdict(list)
    for each in samples:
        found[each.trial].append(each.took_s)
    return found


def _points(by_trial: dict[Trial, list[float]], pads: bool) -> Profile:
    grid = {
        (trial.rows, trial.width(pads)): median(took)
        for trial, took in by_trial.items()
        if not trial.held
    }
    return tuple((*shape, took_s) for shape, took_s in sorted(grid.items()))


def _off(said_s: float, took_s: float) -> float:
    return abs(said_s - took_s) / took_s


def _summed(off: list[float]) -> CostError | None:
    ordered = sorted(off)
    if not ordered:
        return None
    return CostError(at_quantile(ordered, 0.5), at_quantile(ordered, 0.99), len(ordered))
