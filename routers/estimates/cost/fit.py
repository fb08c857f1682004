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
from typing import Final

Vector = tuple[float, float, float, float]
Matrix = list[list[float]]

_FADE: Final = 0.02  # about the last 50 batches of a kind count
_FREE: Final = 1e8  # prior variance of the constant (launch)
# Prior variance of what rows and tokens take, relative to the first sample's time
_SLOPE: Final = 10.0
_SQUARE_FROM: Final = 1024  # tokens: width at which a square is as easily believed as a slope


def features(rows: int, width: int) -> Vector:
    """The factors of the four coefficients, for a batch of `rows` rows of `width` tokens."""
    tokens = float(rows * width)
    return 1.0, float(rows), tokens, tokens * width


class _Four:
    """Four numbers, one for each feature: fields, which are floats of C once compiled; those of a
    list are objects."""

    def __init__(self, one: float, rows: float, tokens: float, square: float) -> None:
        self.one, self.rows, self.tokens, self.square = one, rows, tokens, square

    def dot(self, x: Vector) -> float:
        return self.one * x[0] + self.rows * x[1] + self.tokens * x[2] + self.square * x[3]

    def add(self, times: float, x: Vector) -> None:
        self.one += times * x[0]
        self.rows += times * x[1]
        self.tokens += times * x[2]
        self.square += times * x[3]

    def less(self, times: float, other: _Four) -> _Four:
        """These, less so many times the others."""
        one, rows = self.one - times * other.one, self.rows - times * other.rows
        tokens = self.tokens - times * other.tokens
        return _Four(one, rows, tokens, self.square - times * other.square)

    def negatives(self) -> int:
        """How many are negative."""
        return (self.one < 0.0) + (self.rows < 0.0) + (self.tokens < 0.0) + (self.square < 0.0)

    def listed(self) -> list[float]:
        return [self.one, self.rows, self.tokens, self.square]


class CostFit:
    """`coefficients` are seconds for each of the features, as of the last `solve`."""

    def __init__(self) -> None:
        self.coefficients: Vector = (0.0, 0.0, 0.0, 0.0)
        self.samples = 0
        self._mean = _Four(0.0, 0.0, 0.0, 0.0)  # the unconstrained solution; may be negative
        self._start(features(1, 1), 1.0)  # until a first sample has come

    def _start(self, x: Vector, typical_s: float) -> None:
        """The covariance before any sample, by rows."""
        self._one, self._rows, self._tokens, self._square = _prior(x, typical_s)

    def seconds(self, x: Vector) -> float:
        """Predicted seconds for a batch with these features."""
        c = self.coefficients
        return c[0] + c[1] * x[1] + c[2] * x[2] + c[3] * x[3]

    def doubt(self, x: Vector, typical_s: float) -> float:
        """Variance of the prediction for `x`: after n equal batches 1 / n; large where no batch of
        the kind was measured, inf without samples."""
        if not self.samples:
            return inf
        g = self._spread_of(x)
        known = g[0] * x[0] + g[1] * x[1] + g[2] * x[2] + g[3] * x[3]
        return known / (typical_s * typical_s)

    def _spread_of(self, x: Vector) -> Vector:
        """The covariance times `x`."""
        return self._one.dot(x), self._rows.dot(x), self._tokens.dot(x), self._square.dot(x)

    def learn(self, x: Vector, seconds: float, typical_s: float, fade: float = _FADE) -> None:
        """Take in a batch `x` that took `seconds`, where such batches take `typical_s`. `fade`: the
        part of what was known of such batches that is forgotten."""
        if not self.samples:
            self._start(x, typical_s)
        self.samples += 1
        g = self._spread_of(x)
        known = g[0] * x[0] + g[1] * x[1] + g[2] * x[2] + g[3] * x[3]
        keep = 1.0 - fade
        gain = 1.0 / (known + keep * typical_s * typical_s)
        missed = seconds - self._mean.dot(x)
        change = (fade / known - gain) / keep
        self._mean.add(gain * missed, g)
        self._one.add(g[0] * change, g)
        self._rows.add(g[1] * change, g)
        self._tokens.add(g[2] * change, g)
        self._square.add(g[3] * change, g)

    def solve(self) -> None:
        """Compute the coefficients anew."""
        found = self._mean if self._mean.negatives() != 1 else self._without_negative()
        if found.negatives():
            cov = [each.listed() for each in (self._one, self._rows, self._tokens, self._square)]
            _, best = min(_candidates(self._mean.listed(), cov, 0, 0.0), key=_price)
            self.coefficients = (best[0], best[1], best[2], best[3])
        else:
            self.coefficients = (found.one, found.rows, found.tokens, found.square)

    def _without_negative(self) -> _Four:
        """The best coefficients once the one that is negative is known to be zero."""
        mean = self._mean
        if mean.one < 0.0:
            found = mean.less(mean.one / self._one.one, self._one)
            found.one = 0.0
        elif mean.rows < 0.0:
            found = mean.less(mean.rows / self._rows.rows, self._rows)
            found.rows = 0.0
        elif mean.tokens < 0.0:
            found = mean.less(mean.tokens / self._tokens.tokens, self._tokens)
            found.tokens = 0.0
        else:
            found = mean.less(mean.square / self._square.square, self._square)
            found.square = 0.0
        return found


def _price(candidate: tuple[float, list[float]]) -> float:
    return candidate[0]


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


def _prior(x: Vector, typical_s: float) -> tuple[_Four, _Four, _Four, _Four]:
    """The covariance before any sample, by rows. The first sample sets its scale: all its time is
    taken to be launch, as long as nothing else is shown."""
    _, rows, tokens, square = x
    tokens = max(1.0, tokens)
    reference = (1.0, rows, tokens, max(square, tokens * _SQUARE_FROM))
    spread = (_FREE, _SLOPE, _SLOPE, _SLOPE)
    one, row, token, square = [
        of * (typical_s / factor) ** 2 for of, factor in zip(spread, reference, strict=True)
    ]
    return (
        _Four(one, 0.0, 0.0, 0.0), _Four(0.0, row, 0.0, 0.0), _Four(0.0, 0.0, token, 0.0),
        _Four(0.0, 0.0, 0.0, square),
    )  # fmt: skip
