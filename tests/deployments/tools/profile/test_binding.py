"""Is what binds the thing that would have to be faster?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from deployments.tools.profile.binding import Facts, binding

# 10 ms for work that the peaks would allow in 2 ms of arithmetic and 1 ms of weights.
FACTS = Facts(
    rows=8, width=64, seconds=0.01, copy_s=0.0005, launch_s=0.001, operations=2e9,
    weight_bytes=1e7, peak_flops=1e12, peak_bytes=1e10, tokenise_s=0.0001,
)  # fmt: skip


def test_shares_are_of_peaks_and_of_the_batch() -> None:
    assert binding(FACTS).shares == {
        "compute": pytest.approx(0.2),
        "memory bandwidth": pytest.approx(0.1),
        "preprocessing": pytest.approx(0.08),
        "transfer": pytest.approx(0.05),
        "launch": pytest.approx(0.1),
    }


@pytest.mark.parametrize(
    ("changes", "binds"),
    [
        ({}, "the backend"),
        ({"operations": 8e9}, "compute"),
        ({"weight_bytes": 9e7}, "memory bandwidth"),
        ({"tokenise_s": 0.002}, "preprocessing"),
        ({"copy_s": 0.006}, "transfer"),
        ({"launch_s": 0.009}, "launch"),
        ({"operations": 8e9, "tokenise_s": 0.002, "threads": 4}, "compute"),
        ({"operations": None, "weight_bytes": None}, "the backend (parameters unknown)"),
    ],
)
def test_the_largest_share_near_its_bound_binds(changes: dict[str, float], binds: str) -> None:
    assert binding(replace(FACTS, **changes)).binds == binds


def test_unknown_peaks_are_no_shares() -> None:
    assert binding(replace(FACTS, peak_flops=None)).shares["compute"] is None


def test_launch_is_never_more_than_all_of_it() -> None:
    assert binding(replace(FACTS, launch_s=1.0)).shares["launch"] == 1.0
