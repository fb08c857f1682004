"""Does the canary's answer to a row agree with the live version's?

Both must have the same outputs, each with the same datatype and shape. Each output is then compared
by itself, by what the terms ask for: the cosine (of floating-point outputs), the largest
difference, the place of the maximum. NaN and infinity agree only with the same value at the same
place. Where the terms ask for nothing that applies to an output's datatype, only equal outputs
agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from deployments.contract.rollout.terms import AgreementTerms

_FLOATING = ("FP", "BF")
Outputs = Mapping[str, tuple[str, np.ndarray[Any, Any]]]
"""One row's outputs, by name: datatype and array."""


def agrees(live: Outputs, canary: Outputs, terms: AgreementTerms) -> bool:
    """Whether the two versions agree on a row."""
    if live.keys() != canary.keys():
        return False
    return all(_agree(live[name], canary[name], terms) for name in live)


def _agree(
    one: tuple[str, np.ndarray[Any, Any]],
    other: tuple[str, np.ndarray[Any, Any]],
    terms: AgreementTerms,
) -> bool:
    (datatype, a), (other_datatype, b) = one, other
    if datatype != other_datatype or a.shape != b.shape:
        return False
    cosine = terms.cosine if datatype.startswith(_FLOATING) else None
    asked = cosine is not None or terms.max_abs is not None or terms.top1
    if datatype == "BYTES" or not asked:
        return bool(np.array_equal(a, b))
    x, y = (each.astype(np.float64, copy=False).reshape(-1) for each in (a, b))
    if terms.top1 and x.size and int(x.argmax()) != int(y.argmax()):
        return False
    finite = np.isfinite(x) & np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return False
    return _near(x[finite], y[finite], terms.max_abs, cosine)


def _near(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], max_abs: float | None, cosine: float | None
) -> bool:
    if not x.size:
        return True
    if max_abs is not None and float(np.abs(x - y).max()) > max_abs:
        return False
    return cosine is None or _cosine(x, y) >= cosine


def _cosine(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    """The cosine; 1 where both are zero, 0 where one is."""
    lengths = float(np.linalg.norm(x)) * float(np.linalg.norm(y))
    if not lengths:
        return float(not x.any() and not y.any())
    return float(x @ y) / lengths
