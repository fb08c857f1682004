"""When a row of the canary's is the live version's: the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deployments.contract.rollout.terms import AgreementTerms
from deployments.gateway.rollout.shadow_traffic import Outputs, agrees

NOTHING = AgreementTerms()
COSINE = AgreementTerms(cosine=0.9)
NEAR = AgreementTerms(max_abs=0.5)
TOP1 = AgreementTerms(top1=True)
BOTH = AgreementTerms(cosine=0.9, max_abs=0.5)
NAN, INF = float("nan"), float("inf")


def row(*values: Any, datatype: str = "FP32", name: str = "y", dtype: Any = None) -> Outputs:
    dtype = dtype or {"FP32": np.float32, "INT64": np.int64, "BYTES": object}[datatype]
    return {name: (datatype, np.array(values, dtype=dtype))}


@pytest.mark.parametrize(
    ("live", "canary", "terms", "expected"),
    [
        (row(1, 2), row(1, 2), NOTHING, True),
        (row(1, 2), row(1, 2.1), NOTHING, False),
        (row(1, 0), row(2, 0), COSINE, True),
        (row(1, 0), row(1, 0.4), COSINE, True),
        (row(1, 0), row(1, 1), COSINE, False),
        (row(1, 0), row(-1, 0), COSINE, False),
        (row(0, 0), row(0, 0), COSINE, True),
        (row(0, 0), row(0, 1), COSINE, False),
        (row(1, 2), row(1.5, 2), NEAR, True),
        (row(1, 2), row(1.6, 2), NEAR, False),
        (row(1, 5, 2), row(0, 3, 1), TOP1, True),
        (row(1, 5, 2), row(9, 8, 1), TOP1, False),
        (row(10, 0), row(20, 0), BOTH, False),
        (row(0.1, 0), row(0, 0.1), BOTH, False),
        (row(NAN, 1), row(NAN, 1), NOTHING, False),
        (row(1, 1), row(NAN, 1), COSINE, False),
        (row(1, 1), row(NAN, 1), NEAR, False),
        (row(1, 1), row(NAN, 1), TOP1, False),
        (row(INF, 1), row(INF, 1), TOP1, True),
        (row(INF, 1), row(-INF, 1), NEAR, False),
        (row(-INF, 1, NAN), row(-INF, 1.2, NAN), NEAR, True),
        (row(-INF, 1), row(-INF, 3), NEAR, False),
        (row(INF, 1, 2), row(INF, 2, 1), TOP1, True),
        (row(), row(), BOTH, True),
        (row(1, 2), row(1, 2, 3), NEAR, False),
        (row(1, 2), row(1, 2, dtype=np.float64, datatype="FP32"), NEAR, True),
        (row(1, 2), row(1, 2, datatype="INT64"), NEAR, False),
        (row(1, 2), row(1, 2, name="z"), NEAR, False),
        (row(1), {**row(1), **row(1, name="z")}, NEAR, False),
        (row(3, 4, datatype="INT64"), row(3, 4, datatype="INT64"), COSINE, True),
        (row(3, 4, datatype="INT64"), row(6, 8, datatype="INT64"), COSINE, False),
        (row(3, 4, datatype="INT64"), row(3, 5, datatype="INT64"), TOP1, True),
        (row(b"a", datatype="BYTES"), row(b"a", datatype="BYTES"), BOTH, True),
        (row(b"a", datatype="BYTES"), row(b"b", datatype="BYTES"), BOTH, False),
    ],
)
def test_agreement(live: Outputs, canary: Outputs, terms: AgreementTerms, expected: bool) -> None:
    assert agrees(live, canary, terms) is expected


def sparse(weights: dict[int, float]) -> Outputs:
    """Of three entries, as a sparse model answers."""
    at = sorted(weights, key=lambda index: index)
    found = [-1] * (3 - len(at)) + at
    values = [weights.get(index, 0.0) for index in found]
    return {
        "indices": ("INT64", np.array(found, np.int64)),
        "values": ("FP32", np.array(values, np.float32)),
    }


@pytest.mark.parametrize(
    ("canary", "terms", "expected"),
    [
        ({5: 2.0, 7: 1.0, 9: 0.5}, COSINE, True),
        ({5: 2.0, 7: 1.0, 8: 0.5}, NEAR, True),  # as large as the one that was cut off
        ({5: 2.0, 9: 0.5}, NEAR, False),
        ({4: 2.0, 7: 1.0, 9: 0.5}, COSINE, False),
    ],
)
def test_sparse_vectors_agree_entry_by_entry(
    canary: dict[int, float], terms: AgreementTerms, expected: bool
) -> None:
    live = {5: 2.0, 7: 1.0, 9: 0.5}
    assert agrees(sparse(live), sparse(canary), terms) is expected
    assert agrees(sparse(canary), sparse(live), terms) is expected


def test_every_output_must_agree() -> None:
    one = {**row(1, name="a"), **row(1, name="b")}
    other = {**row(1, name="a"), **row(9, name="b")}
    assert agrees(one, one, NEAR)
    assert not agrees(one, other, NEAR)
