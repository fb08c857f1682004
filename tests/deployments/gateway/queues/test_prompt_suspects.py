"""Which of the prompts that were on a lost replica is convicted."""

from __future__ import annotations

import pytest

from deployments.gateway.queues.lost_replicas import PromptSuspect, convicts


def suspect(losses: int, key: bytes = b"it", *, reading: bool = True) -> PromptSuspect:
    return PromptSuspect(key, "t", frozenset(f"r{n}" for n in range(losses)), reading)


@pytest.mark.parametrize(("losses", "convicted"), [(1, False), (2, True)])
def test_a_prompt_that_was_alone_is_convicted_by_the_second_loss(
    losses: int, convicted: bool
) -> None:
    it = suspect(losses)
    assert convicts(it, [it], sole=True) is convicted


@pytest.mark.parametrize(("losses", "convicted"), [(2, False), (3, True)])
def test_where_another_gateway_may_have_had_something_there_nobody_was_alone(
    losses: int, convicted: bool
) -> None:
    it = suspect(losses)
    assert convicts(it, [it], sole=False) is convicted


@pytest.mark.parametrize(
    ("losses", "others", "convicted"),
    [(2, 1, False), (3, 1, True), (3, 2, True), (3, 3, False), (4, 4, False), (5, 5, True)],
)
def test_beside_others_the_third_loss_convicts_who_has_more_than_they_and_the_fifth_anybody(
    losses: int, others: int, convicted: bool
) -> None:
    it, other = suspect(losses), suspect(others, b"other")
    assert convicts(it, [other, it], sole=True) is convicted


@pytest.mark.parametrize(
    ("reading", "other_reading", "convicted"),
    [(True, False, True), (False, True, False), (True, True, False), (False, False, False)],
)
def test_of_two_with_as_many_losses_the_one_without_a_token_is_convicted(
    reading: bool, other_reading: bool, convicted: bool
) -> None:
    it, other = suspect(3, reading=reading), suspect(3, b"other", reading=other_reading)
    assert convicts(it, [it, other], sole=False) is convicted
