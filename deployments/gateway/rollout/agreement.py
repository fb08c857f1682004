"""Does the canary's answer to a row agree with the live version's?

Equal names, datatypes and shapes of all outputs first; then what the terms ask for, each output by
itself, the cosine of floating-point ones. NaN and infinity agree only with their like at the same
place, and where the terms ask for nothing of an output of its kind, only equal ones agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from deployments.contract.rollout.terms import AgreementTerms

_FLOATING = ("FP", "BF")
Outputs = Mapping[str, tuple[str, np.ndarray[Any, Any]]]
"""One row's, by name: datatype and array."""


def agrees(live: Outputs, canary: Outputs, terms: AgreementTerms) -> bool:
    """Whether the row counts as the same."""
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
    """1 of two zeros, 0 of one."""
    lengths = float(np.linalg.norm(x)) * float(np.linalg.norm(y))
    if not lengths:
        return float(not x.any() and not y.any())
    return float(x @ y) / lengths
