"""How many seconds will a batch take on the device?

The prediction is the fit of the replica's group (`cost.fit`), times the slowdown of the replica,
times a quantile of how measured batches scatter around that (`cost.residuals`): the median to plan
with, the 99th percentile for promises. It starts from a profile where there is one.

A batch of a kind that was never measured teaches the fit. Any other batch teaches the replica's
slowdown first, and the fit only what is left, by no more than noise explains; so neither a hiccup
nor a slow replica bends the fit. Unit: seconds of device time, without waiting and transport.
Source: Clockwork (OSDI'20) for predicting from recent batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log
from typing import Final

from routers.api.settings import DispatcherSettings
from routers.estimates.cost.fit import CostFit, Vector, features
from routers.estimates.cost.residuals import Scatter, Slowdowns, Spread, at_quantile

# Of typical batches:
_GAIN: Final = 0.1  # of the moving averages
_FIRST_FILL: Final = 0.5  # of the rows that a batch may hold, until one was measured

# Of the fit:
# Doubt above which a deviation is the fit's: fewer than 4 batches of the kind
_NEW_GROUND: Final = 0.25
_EARLY_SAMPLES: Final = 32  # up to here every sample is tested for new ground, and solved for
_SOLVE_EVERY: Final = 4  # samples, later
_ABSORB: Final = 0.1  # of the pool's slowdown goes to the fit, so that the two do not drift apart
_ERRORS: Final = 256  # last ones kept


@dataclass(slots=True)
class TypicalBatch:
    """The average batch that a bucket leads."""

    rows: float
    width: float

    def follow(self, rows: int, width: int) -> None:
        """Move the averages towards another batch."""
        self.rows += _GAIN * (rows - self.rows)
        self.width += _GAIN * (width - self.width)


class TypicalBatches:
    """Moving averages of rows and width over the batches that each bucket led.

    The last ten batches count for two thirds. A row's cost is found from the quotient of the
    averages, not from the average of quotients, which would be wrong where small and full batches
    take turns. Until a batch was measured: half of the rows that one may hold (`max_size` rows and
    `max_tokens` tokens), at full width.
    """

    def __init__(self, max_size: int, max_tokens: int) -> None:
        self._max_size = max_size
        self._max_tokens = max_tokens
        self._by_edge: dict[int, TypicalBatch] = {}

    def of(self, edge: int) -> TypicalBatch:
        """The bucket's typical batch, measured or assumed."""
        return self._by_edge.get(edge) or self._assumed(edge)

    def observe(self, edge: int, rows: int, width: int) -> None:
        """The bucket led a batch of so many rows and this width."""
        typical = self._by_edge.get(edge)
        if typical is None:
            self._by_edge[edge] = TypicalBatch(rows, width)
        else:
            typical.follow(rows, width)

    def _assumed(self, edge: int) -> TypicalBatch:
        most = min(self._max_size, self._max_tokens // max(1, edge))
        return TypicalBatch(max(1.0, _FIRST_FILL * most), edge)


@dataclass(frozen=True, slots=True)
class CostError:
    """Relative error |observed - predicted| / observed over the last `samples` batches."""

    median: float
    p99: float
    samples: int


@dataclass(frozen=True, slots=True)
class Coefficients:
    """What a batch costs on a replica with the pool's slowdown, in seconds: constant, for each row,
    for each token (rows × width), and for each token times width."""

    launch_s: float
    row_s: float
    token_s: float
    square_s: float


class CostModel:
    """The cost of batches of one group. `initial_s` is the prediction until a batch has been
    measured. `profile`: (rows, width, seconds) of batches measured before. A batch holds up to
    `max_size` rows and `max_tokens` tokens. Width is the length of a batch's longest row, or the
    mean length where the model packs. `learnt` counts the batches that were learnt from."""

    def __init__(
        self,
        initial_s: float = 0.0,
        profile: Iterable[tuple[int, int, float]] = (),
        *,
        max_size: int = 32,
        max_tokens: int = 16384,
    ) -> None:
        self._initial_s = initial_s
        self._frozen = False
        self.learnt = 0
        self._start(tuple(profile), max_size, max_tokens)

    @classmethod
    def of(cls, settings: DispatcherSettings) -> CostModel:
        """A model for the group with these settings."""
        initial_s, profile = settings.initial_cost_s, settings.profile
        most, max_tokens = settings.fixed_size or settings.max_size, settings.max_tokens
        model = cls(initial_s, profile, max_size=most, max_tokens=max_tokens)
        model.freeze(settings.frozen)
        return model

    def adopt(self, settings: DispatcherSettings) -> None:
        """Go on under new settings. Another profile means another model, so what was learnt
        goes."""
        bounds = settings.fixed_size or settings.max_size, settings.max_tokens
        if settings.profile != self._profile:
            self._start(settings.profile, *bounds)
        elif bounds != self._bounds:
            self._bound(*bounds)
        self.freeze(settings.frozen)

    def _start(
        self, profile: tuple[tuple[int, int, float], ...], max_size: int, max_tokens: int
    ) -> None:
        self._profile = profile
        self._bound(max_size, max_tokens)
        self._fit, self._slowdowns, self._spread = CostFit(), Slowdowns(), Spread()
        self._errors: deque[float] = deque(maxlen=_ERRORS)
        self._coefficients: Vector = (self._initial_s, 0.0, 0.0, 0.0)
        for rows, width, seconds in profile:
            if seconds > 0.0:
                self._fit.learn(features(rows, width), seconds, seconds, fade=0.0)
        if self.measured:
            self._solve()

    def _bound(self, max_size: int, max_tokens: int) -> None:
        self._bounds = max_size, max_tokens
        self._typical = TypicalBatches(max_size, max_tokens)
        self._units: dict[int, float] = {}

    @property
    def measured(self) -> bool:
        """Whether the fit has any sample, from the profile or from batches."""
        return self._fit.samples > 0

    @property
    def coefficients(self) -> Coefficients:
        """The fit, at the pool's slowdown."""
        launch, row, token, square = self._coefficients
        slowdown = self._slowdowns.pool
        return Coefficients(launch * slowdown, row * slowdown, token * slowdown, square * slowdown)

    # -- what a batch will cost

    def predict(
        self, rows: float, width: float, replica_id: str = "", quantile: float = 0.5
    ) -> float:
        """Device seconds of a batch; the share `quantile` of such batches takes no longer, hiccups
        left out."""
        launch, row, token, square = self._coefficients
        tokens = rows * width
        fit_s = launch + row * rows + tokens * (token + square * width)
        return fit_s * self._slowdowns.of(replica_id) * self._spread.quantile(quantile)

    def unit_s(self, edge: int) -> float:
        """Predicted seconds of one row in the typical batch that the bucket leads; O(1)."""
        unit_s = self._units.get(edge)
        if unit_s is None:
            typical = self._typical.of(edge)
            launch, row, token, square = self._coefficients
            per_row_s = (
                launch / typical.rows + row + typical.width * (token + square * typical.width)
            )
            unit_s = per_row_s * self._slowdowns.pool * self._spread.median
            self._units[edge] = unit_s
        return unit_s

    def slowdown(self, replica_id: str) -> float:
        """The replica's slowdown relative to the pool's; 1.0 until it was measured."""
        return self._slowdowns.to_pool(replica_id)

    def error(self) -> CostError:
        """How wrong predictions have lately been."""
        ordered = sorted(self._errors)
        if not ordered:
            return CostError(0.0, 0.0, 0)
        return CostError(at_quantile(ordered, 0.5), at_quantile(ordered, 0.99), len(ordered))

    def scatter(self) -> Scatter:
        """How measured batches scatter around their predictions, hiccups left out."""
        return self._spread.scatter()

    # -- what batches have cost

    def observe(
        self,
        rows: int,
        width: int,
        service_s: float,
        *,
        predicted_s: float,
        replica_id: str = "",
        edge: int = 0,
    ) -> None:
        """A batch took `service_s`. `predicted_s`: what was predicted when it was sent. `edge`: of
        the bucket that led it; 0: none, so it counts for no bucket's typical batch."""
        if service_s <= 0.0:
            return
        if self.measured or self._initial_s > 0.0:
            self._errors.append(abs(service_s - predicted_s) / service_s)
        if self._frozen:
            return
        self._learn(features(rows, width), service_s, replica_id)
        self.learnt += 1
        if edge:
            self._typical.observe(edge, rows, width)
        self._units.clear()

    def freeze(self, frozen: bool) -> None:
        """While frozen, predictions stay as they are; errors are still counted."""
        self._frozen = frozen

    def forget(self, replica_id: str) -> None:
        """The replica is gone."""
        self._slowdowns.forget(replica_id)

    def _learn(self, x: Vector, service_s: float, replica_id: str) -> None:
        fit, slowdowns, noise = self._fit, self._slowdowns, self._spread.noise
        fit_s = fit.seconds(x)
        expected_s = fit_s * slowdowns.of(replica_id)
        if not fit_s or self._is_new_ground(x, fit_s, service_s / expected_s):
            seconds = service_s / slowdowns.of(replica_id)
            # Weighed by its own time: if it was a hiccup, the next batch of its kind outweighs it.
            self._take(x, seconds, seconds)
            return
        self._spread.observe(service_s / expected_s)
        slowdowns.follow(replica_id, log(service_s / fit_s), noise)
        left = log(service_s / (fit_s * slowdowns.of(replica_id))) + _ABSORB * log(slowdowns.pool)
        odd = max(1.0, abs(left) / noise)
        self._take(x, fit_s * exp(left / odd), fit_s * odd)

    def _is_new_ground(self, x: Vector, fit_s: float, quotient: float) -> bool:
        """Whether too little is known of such batches to attribute the deviation to the replica."""
        fit = self._fit
        if fit.samples >= _EARLY_SAMPLES and abs(log(quotient)) < self._spread.noise:
            return False
        return fit.doubt(x, fit_s) > _NEW_GROUND

    def _take(self, x: Vector, seconds: float, typical_s: float) -> None:
        fit = self._fit
        fit.learn(x, seconds, typical_s)
        if fit.samples < _EARLY_SAMPLES or fit.samples % _SOLVE_EVERY == 0:
            self._solve()

    def _solve(self) -> None:
        self._fit.solve()
        self._coefficients = self._fit.coefficients
