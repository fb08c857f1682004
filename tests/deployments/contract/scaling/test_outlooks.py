"""Gateways are told what is left until the next replica serves."""

from __future__ import annotations

import pytest

from autoscaling.settings import GroupTerms, ModelTerms
from autoscaling.types import GroupReading, GroupTarget, ModelDecision, Reason
from deployments.contract.scaling.outlooks import outlook

TERMS = ModelTerms("m", 0.1, (GroupTerms("", 0, 3),))
AWAKE = ModelDecision("m", (GroupTarget("", 2, 2),), Reason.AWAKE, "", time_to_capacity_s=12.0)


@pytest.mark.parametrize(("begun_s", "left_s"), [(0.0, 12.0), (5.0, 7.0), (12.0, 0.0), (20.0, 0.0)])
def test_what_has_passed_since_the_order_is_no_longer_to_come(
    begun_s: float, left_s: float
) -> None:
    assert outlook(TERMS, AWAKE, [], begun_s).ready_in_s == left_s


@pytest.mark.parametrize(
    ("reading", "wakes"),
    [(GroupReading(), True), (GroupReading(hot=1), False), (GroupReading(starting=1), False)],
)
def test_a_request_wakes_a_model_of_which_nothing_runs_or_starts(
    reading: GroupReading, wakes: bool
) -> None:
    assert outlook(TERMS, AWAKE, [reading]).wakes is wakes
