"""Which non-negative coefficients explain the measured batches best?

seconds = launch + row·B + token·B·W + square·B·W², B rows of width W, by recursive least squares of
relative errors; what a coefficient may not be is negative, so the answer is the best one without
negatives (NNLS). A sample costs the same however many came before. What is old fades only in what
the new sample shows (directional forgetting: Kulhavý, 1987): an hour of short batches takes nothing
from what is known of how long ones compare with them. Where nothing is known the answer is the
least that explains the samples: batches of one size give a constant, of two a line; a square needs
lengths to show it. Variances are in units of one sample's, which is the square of its typical time.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

Vector = tuple[float, float, float, float]
Matrix = list[list[float]]

_FADE = 0.02  # about the last 50 batches of a kind count
_FREE = 1e8  # prior variance of what every batch takes
_SLOPE = 10.0  # of what a row or token may take, to all that the first sample took
_SQUARE_FROM = 1024  # tokens: width at which a square is as easily believed as a slope


def features(rows: int, width: int) -> Vector:
    tokens = float(rows * width)
    return 1.0, float(rows), tokens, tokens * width


class CostFit:
    """`coefficients`: seconds for each of the features, as of the last `solve`."""

    def __init__(self) -> None:
        self.coefficients: Vector = (0.0, 0.0, 0.0, 0.0)
        self.samples = 0
        self._mean = [0.0] * 4  # may be negative
        self._cov: Matrix = []

    def seconds(self, x: Vector) -> float:
        c = self.coefficients
        return c[0] + c[1] * x[1] + c[2] * x[2] + c[3] * x[3]

    def doubt(self, x: Vector, typical_s: float) -> float:
        """Variance of the prediction for `x`: n batches alike leave 1 / n; large where nothing of
        the kind was measured."""
        if not self.samples:
            return inf
        x0, x1, x2, x3 = x
        g = [row[0] * x0 + row[1] * x1 + row[2] * x2 + row[3] * x3 for row in self._cov]
        return (g[0] * x0 + g[1] * x1 + g[2] * x2 + g[3] * x3) / (typical_s * typical_s)

    def learn(self, x: Vector, seconds: float, typical_s: float, fade: float = _FADE) -> None:
        """Take in a batch of `x` that took `seconds`, where such batches take `typical_s`. `fade`:
        of what was known of them so far."""
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
        """Find the coefficients anew."""
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
    """(how much worse it explains the samples, coefficients) for every choice of which are zero
    that leaves none negative."""
    if min(mean) >= 0.0:
        yield price, mean
    for k in range(first, 4):
        if cov[k][k] > 0.0:
            without, rest = _without(k, mean, cov)
            yield from _candidates(without, rest, k + 1, price + mean[k] * mean[k] / cov[k][k])


def _without(k: int, mean: list[float], cov: Matrix) -> tuple[list[float], Matrix]:
    """What is best, and how sure, once coefficient `k` is known to be zero."""
    pivot = cov[k]
    ratio = mean[k] / pivot[k]
    left = [value - ratio * pivot[i] for i, value in enumerate(mean)]
    rest = [[v - row[k] / pivot[k] * pivot[j] for j, v in enumerate(row)] for row in cov]
    left[k] = 0.0
    for row in rest:
        row[k] = 0.0  # rounding would leave something
    return left, rest


def _prior(x: Vector, typical_s: float) -> Matrix:
    """The first sample says what may be: its whole time is launch, as far as nothing else shows."""
    _, rows, tokens, square = x
    tokens = max(1.0, tokens)
    reference = (1.0, rows, tokens, max(square, tokens * _SQUARE_FROM))
    spread = (_FREE, _SLOPE, _SLOPE, _SLOPE)
    return [
        [spread[i] * (typical_s / reference[i]) ** 2 if i == j else 0.0 for j in range(4)]
        for i in range(4)
    ]
