"""Which non-negative coefficients explain the measured batches best?

seconds = launch + row·B + token·B·W + square·B·W², for B rows of width W, by recursive least
squares of relative errors. A coefficient may not be negative, so the answer is the best one without
negatives (NNLS). A sample costs the same however many came before.

Old samples fade only in the direction that a new sample shows (directional forgetting: Kulhavý,
1987): an hour of short batches takes nothing from what is known of how long batches compare with
them. Where little is known, the answer is the smallest that explains the samples: batches of one
size give a constant, of two sizes a line; a square needs several lengths to show. Variances are in
units of one sample's variance, which is the square of its typical time.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

Vector = tuple[float, float, float, float]
Matrix = list[list[float]]

_FADE = 0.02  # about the last 50 batches of a kind count
_FREE = 1e8  # prior variance of the constant (launch)
_SLOPE = 10.0  # prior variance of what rows and tokens take, relative to the first sample's time
_SQUARE_FROM = 1024  # tokens: width at which a square is as easily believed as a slope


def features(rows: int, width: int) -> Vector:
    """The factors of the four coefficients, for a batch of `rows` rows of `width` tokens."""
    tokens = float(rows * width)
    return 1.0, float(rows), tokens, tokens * width


class CostFit:
    """`coefficients` are seconds for each of the features, as of the last `solve`."""

    def __init__(self) -> None:
        self.coefficients: Vector = (0.0, 0.0, 0.0, 0.0)
        self.samples = 0
        self._mean = [0.0] * 4  # the unconstrained solution; may be negative
        self._cov: Matrix = []  # its covariance

    def seconds(self, x: Vector) -> float:
        """Predicted seconds for a batch with these features."""
        c = self.coefficients
        return c[0] + c[1] * x[1] + c[2] * x[2] + c[3] * x[3]

    def doubt(self, x: Vector, typical_s: float) -> float:
        """Variance of the prediction for `x`: after n equal batches 1 / n; large where no batch of
        the kind was measured, inf without samples."""
        if not self.samples:
            return inf
        x0, x1, x2, x3 = x
        g = [row[0] * x0 + row[1] * x1 + row[2] * x2 + row[3] * x3 for row in self._cov]
        return (g[0] * x0 + g[1] * x1 + g[2] * x2 + g[3] * x3) / (typical_s * typical_s)

    def learn(self, x: Vector, seconds: float, typical_s: float, fade: float = _FADE) -> None:
        """Take in a batch `x` that took `seconds`, where such batches take `typical_s`. `fade`: the
        part of what was known of such batches that is forgotten."""
        if not self.samples:
            self._cov = _prior(x, typical_s)
        self.samples += 1
        x0, x1, x2, x3 = x
        cov, mean = self._cov, self._mean
        g = [row[0] * x0 + row[1] * x1 + row[2] * x2 + row[3] * x3 for row in cov]
        known = g[0] * x0 + g[1] * x1 + g[2] * x2 + g[3] * x3
        keep = 1.0 - fade
        gain = 1.0 / (known + keep * typical_s * typical_s)
        missed = seconds - (mean[0] * x0 + mean[1] * x1 + mean[2] * x2 + mean[3] * x3)
        change = (fade / known - gain) / keep
        g0, g1, g2, g3 = g
        for k, row in enumerate(cov):
            own = g[k]
            mean[k] += gain * missed * own
            own *= change
            row[0] += own * g0
            row[1] += own * g1
            row[2] += own * g2
            row[3] += own * g3

    def solve(self) -> None:
        """Compute the coefficients anew."""
        mean = self._mean
        negative = [k for k in range(4) if mean[k] < 0.0]
        if len(negative) == 1:
            without, _ = _without(negative[0], mean, self._cov)
            if min(without) >= 0.0:
                mean, negative = without, []
        if negative:
            _, mean = min(_candidates(mean, self._cov, 0, 0.0), key=lambda found: found[0])
        self.coefficients = (mean[0], mean[1], mean[2], mean[3])


def _candidates(
    mean: list[float], cov: Matrix, first: int, price: float
) -> Iterator[tuple[float, list[float]]]:
    """For every choice of coefficients that are zero, such that none is negative: (how much worse
    it explains the samples, coefficients)."""
    if min(mean) >= 0.0:
        yield price, mean
    for k in range(first, 4):
        if cov[k][k] > 0.0:
            without, rest = _without(k, mean, cov)
            yield from _candidates(without, rest, k + 1, price + mean[k] * mean[k] / cov[k][k])


def _without(k: int, mean: list[float], cov: Matrix) -> tuple[list[float], Matrix]:
    """The best coefficients, and their covariance, once coefficient `k` is known to be zero."""
    pivot = cov[k]
    ratio = mean[k] / pivot[k]
    left = [value - ratio * pivot[i] for i, value in enumerate(mean)]
    rest = [[v - row[k] / pivot[k] * pivot[j] for j, v in enumerate(row)] for row in cov]
    left[k] = 0.0
    for row in rest:
        row[k] = 0.0  # exactly, without what rounding leaves
    return left, rest


def _prior(x: Vector, typical_s: float) -> Matrix:
    """The covariance before any sample. The first sample sets its scale: all its time is taken to
    be launch, as long as nothing else is shown."""
    _, rows, tokens, square = x
    tokens = max(1.0, tokens)
    reference = (1.0, rows, tokens, max(square, tokens * _SQUARE_FROM))
    spread = (_FREE, _SLOPE, _SLOPE, _SLOPE)
    return [
        [spread[i] * (typical_s / reference[i]) ** 2 if i == j else 0.0 for j in range(4)]
        for i in range(4)
    ]
