"""What the host remembers of rollouts, whoever says it first."""

from __future__ import annotations

import pytest
from rolled_out import model

from deployments.contract.rollout.account import RolloutAccount
from deployments.contract.rollout.terms import RolloutTerms
from deployments.control.deployed import Canary, Deployed
from deployments.control.registry.rollout import Rollout
from deployments.control.registry.rollouts import account
from deployments.control.rollout_records import RolloutRecords, end_sentence
from deployments.settings.tree import Settings

LIVE = Deployed(Settings.model_validate({"models": {"m": model(1)}}))


def canary(number: int) -> Canary:
    return Canary("m", LIVE.settings.models["m"], number, 0.0, rollout=number)


def said(number: int) -> RolloutAccount:
    return account(Rollout("m", number, RolloutTerms(), 0.0), 1.0, None, None)


@pytest.fixture
def records() -> RolloutRecords:
    """With one rollout that has ended."""
    made = RolloutRecords()
    made.note(canary(2), said(2))
    made.end(canary(2), "it fails", LIVE.settings, LIVE.settings)
    return made


@pytest.mark.parametrize(
    ("number", "kept"),
    [(1, (2, "aborted", True)), (2, (2, "aborted", True)), (3, (3, "checking", False))],
)
def test_what_was_asked_before_an_end_does_not_undo_it(
    records: RolloutRecords, number: int, kept: tuple[int, str, bool]
) -> None:
    records.note(canary(number), said(number))
    (found,) = records.listing(LIVE)
    assert (found["id"], found["phase"], found["over"]) == kept


def test_a_canary_that_does_not_start_leaves_what_was_there_before(
    records: RolloutRecords,
) -> None:
    with records.starting({"m": canary(3)}):
        (starting,) = records.listing(LIVE)
    (after,) = records.listing(LIVE)
    assert [(r["id"], r["phase"], r["over"]) for r in (starting, after)] == [
        (3, "starting", False),
        (2, "aborted", True),
    ]


def test_the_log_says_of_an_abort_that_the_file_has_that_version_still() -> None:
    assert "`headrace diff FILE` shows it" in end_sentence("m", "aborted", "it fails")
    assert "FILE" not in end_sentence("m", "promoted", "")
