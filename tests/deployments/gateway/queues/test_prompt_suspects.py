"""Which of the prompts that were on a lost replica is quarantined."""

from __future__ import annotations

import pytest

from deployments.gateway.queues.lost_replicas import PromptSuspect, quarantines


def suspect(losses: int, key: bytes = b"it", *, reading: bool = True) -> PromptSuspect:
    return PromptSuspect(key, "t", frozenset(f"r{n}" for n in range(losses)), reading)


@pytest.mark.parametrize(("losses", "quarantined"), [(1, False), (2, True)])
def test_a_prompt_that_was_alone_is_quarantined_by_the_second_loss(
    losses: int, quarantined: bool
) -> None:
    it = suspect(losses)
    assert quarantines(it, [it], sole=True) is quarantined


@pytest.mark.parametrize(("losses", "quarantined"), [(2, False), (3, True)])
def test_where_another_gateway_may_have_had_something_there_nobody_was_alone(
    losses: int, quarantined: bool
) -> None:
    it = suspect(losses)
    assert quarantines(it, [it], sole=False) is quarantined


@pytest.mark.parametrize(
    ("losses", "others", "quarantined"),
    [(2, 1, False), (3, 1, True), (3, 2, True), (3, 3, False), (4, 4, False), (5, 5, True)],
)
def test_beside_others_the_third_loss_quarantines_who_has_more_than_they_and_the_fifth_anybody(
    losses: int, others: int, quarantined: bool
) -> None:
    it, other = suspect(losses), suspect(others, b"other")
    assert quarantines(it, [other, it], sole=True) is quarantined


@pytest.mark.parametrize(
    ("reading", "other_reading", "quarantined"),
    [(True, False, True), (False, True, False), (True, True, False), (False, False, False)],
)
def test_of_two_with_as_many_losses_the_one_without_a_token_is_quarantined(
    reading: bool, other_reading: bool, quarantined: bool
) -> None:
    it, other = suspect(3, reading=reading), suspect(3, b"other", reading=other_reading)
    assert quarantines(it, [it, other], sole=False) is quarantined
