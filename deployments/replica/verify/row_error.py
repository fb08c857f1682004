"""How far is one row of an output from what the reference gave for it?

Absolute errors are in the output's own unit. Relative ones are to the element itself or, where that
is smaller, to the row's root mean square: a value that happens to lie near zero is no reason to
call a good row bad. What is not a number, or infinite, on one side only is infinitely wrong.
Pure arithmetic on two arrays; what is tolerable is `agreement`'s question.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class RowError:
    """`cosine`: of the flattened rows, None where they are no vectors of real numbers. `asked`: how
    many choices between classes (along the last axis) the row holds, `hits`: those alike.
    `odd`: elements that are finite on one side only. `note`: what cannot be said in numbers."""

    elements: int
    max_abs: float
    sum_abs: float
    max_rel: float
    sum_rel: float
    cosine: float | None = None
    asked: int = 0
    hits: int = 0
    odd: int = 0
    note: str = ""


def row_error(reference: Array, candidate: Array) -> RowError:
    """Both in the output's shape without the batch axis; texts are alike or not."""
    if reference.shape != candidate.shape:
        note = f"has the shape {list(candidate.shape)} for {list(reference.shape)}"
        return RowError(1, inf, inf, inf, inf, 0.0, asked=1, note=note)
    if reference.dtype.kind == "O":
        unlike = np.atleast_1d(reference != candidate).astype(np.float64)
        return _of(unlike, unlike)
    real = _is_real(reference)
    # A row may be a single number.
    left, right = (np.atleast_1d(side.astype(np.float64)) for side in (reference, candidate))
    errors = _absolute(left, right)
    found = _of(errors, _relative(errors, left))
    if not real or not left.size:
        return found
    asked, hits = _choices(left, right)
    odd = int(np.count_nonzero(np.isfinite(left) != np.isfinite(right)))
    return RowError(
        found.elements, found.max_abs, found.sum_abs, found.max_rel, found.sum_rel,
        _cosine(left, right), asked, hits, odd,
    )  # fmt: skip


def _of(errors: Array, relative: Array) -> RowError:
    if not errors.size:
        return RowError(0, 0.0, 0.0, 0.0, 0.0)
    return RowError(
        errors.size,
        float(errors.max()),
        float(errors.sum()),
        float(relative.max()),
        float(relative.sum()),
    )


def _is_real(array: Array) -> bool:
    # bfloat16 is no kind of numpy's own.
    return array.dtype.kind in "fV" or "float" in array.dtype.name


def _absolute(left: Array, right: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        errors: Array = np.abs(left - right)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    errors[np.isnan(errors)] = inf
    errors[same] = 0.0
    return errors


def _relative(errors: Array, left: Array) -> Array:
    finite = np.where(np.isfinite(left), left, 0.0)
    size = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    floor = np.maximum(np.abs(finite), size)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative: Array = np.where(errors == 0.0, 0.0, errors / floor)
    return relative


def _cosine(left: Array, right: Array) -> float:
    """1 for two rows of zeros, 0 where only one is, or where a number is not finite."""
    left, right = left.reshape(-1), right.reshape(-1)
    if np.array_equal(left, right, equal_nan=True):
        return 1.0
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return 0.0
    # Scaled first: squares of what is near the largest float would overflow.
    left = left / (np.abs(left).max() or 1.0)
    right = right / (np.abs(right).max() or 1.0)
    norms = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(np.clip(left @ right / norms, -1.0, 1.0)) if norms else 0.0


def _choices(left: Array, right: Array) -> tuple[int, int]:
    """A choice that is as good in the reference's eyes counts as the same."""
    if left.ndim == 0 or left.shape[-1] < 2:
        return 0, 0
    left, right = left.reshape(-1, left.shape[-1]), right.reshape(-1, right.shape[-1])
    known = ~np.isnan(left).any(axis=1) & ~np.isnan(right).any(axis=1)
    chosen = np.take_along_axis(left, right.argmax(axis=1, keepdims=True), axis=1)[:, 0]
    hits = known & (chosen >= left.max(axis=1))
    return len(left), int(np.count_nonzero(hits))
