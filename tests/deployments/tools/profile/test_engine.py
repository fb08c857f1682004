"""Are an engine's bounds no larger than the traffic needs, and is what shorter ones cost told?"""

from __future__ import annotations

import pytest

from deployments.tools.profile.engine import Choice, contexts, max_sequences

STEPS = ((1, 1, 0.010), (8, 8, 0.020), (32, 32, 0.040), (64, 64, 0.080))


def test_the_longest_and_fifteen_percent_more_is_proposed() -> None:
    found = contexts([100] * 90 + [500] * 9 + [2000])
    assert (found.longest, found.proposed) == (2000, Choice(2300, 0.0))
    assert found.shorter == (Choice(500, 0.01), Choice(100, 0.1))


def test_no_more_than_the_model_takes_is_proposed() -> None:
    assert contexts([1000, 4000], 4096).proposed == Choice(4096, 0.0)
    assert contexts([1000, 4000], 2048).proposed == Choice(2048, 0.5)


def test_one_length_has_no_shorter_choice() -> None:
    assert contexts([10]).shorter == ()


def test_no_lengths_are_no_proposal() -> None:
    with pytest.raises(ValueError, match="no lengths"):
        contexts([])


@pytest.mark.parametrize(
    ("budget_s", "step_s", "most"),
    [(0.2, 0.01, 256), (0.15, 0.05, 32), (0.15, 0.02, 8), (0.15, 0.005, 1), (0.15, 0.1, 256)],
)
def test_a_tight_budget_lowers_the_sequences(budget_s: float, step_s: float, most: int) -> None:
    assert max_sequences(STEPS, step_s, 256, budget_s) == most


def test_it_is_never_raised_and_unmeasured_it_stays() -> None:
    assert max_sequences(STEPS, 0.05, 4, 0.1) == 4
    assert max_sequences((), 0.001, 256, 0.1) == 256
