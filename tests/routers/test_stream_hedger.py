"""When a request that generates is raced by a copy, who wins, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from routers.api.actions import Abort, Action, Dispatch, Evict
from routers.api.events import Opened
from routers.api.requests import LeaseEnd, Reason, Tokens
from routers.api.settings import GenerationParameters, HedgeParameters
from tests.routers.conftest import Driver

Start = Callable[..., Driver]
EDGES = (64, 256, 1024)
# A weighted token is worth a millisecond, a prompt token takes a tenth of one to read.
FIXED = GenerationParameters(tokens_per_s=1000.0, prompt_tokens_per_s=10_000.0, output_tokens=20)
FIRST_S = 0.01  # of a prompt of 100 tokens
COST_S = (100 + 2) / 1000  # of reading it twice, and a token


def sent(actions: list[Action]) -> list[Dispatch]:
    return [each for each in actions if isinstance(each, Dispatch)]


def aborted(actions: list[Action]) -> list[int]:
    return [each.lease_id for each in actions if isinstance(each, Abort)]


def pool(start: Start, *ids: str, first_s: float = FIRST_S, **hedge: Any) -> Driver:
    """Replicas whose first tokens have come when they were expected; one second in."""
    asked = {"mode": "hedge", "max_utilisation": 1.0, "min_samples": 1, "budget": 1.0} | hedge
    driver = start(bucket_edges=EDGES, generation=FIXED, hedge=HedgeParameters(**asked))
    driver.streams(*(ids or ("a", "b")), capacity=10_000, max_leases=8)
    for n in range(4 * len(ids or "ab")):
        (lease,) = sent(driver.generate(9000 + n, 100, 20, at=0.1 * n))
        driver.moves(lease, 100, 1, at=0.1 * n + first_s)
        driver.close(lease, at=driver.now + 0.01, tokens=Tokens(100, 0, 20))
    driver.now = 1.0
    return driver


def racing(start: Start, *ids: str, **more: Any) -> tuple[Driver, Dispatch, Dispatch]:
    """Request 1, whose first token does not come; its lease, and the copy that follows."""
    driver = pool(start, *ids, **more)
    (lease,) = sent(driver.generate(1, 100, 20))
    driver.opens(lease)
    (copy,) = sent(driver.tick(1.02))
    return driver, lease, copy


def budget(driver: Driver) -> float:
    return driver.dispatcher._races.budget.level_s


def start_of(driver: Driver) -> float:
    (flow,) = driver.dispatcher.snapshot(driver.now).flows
    return flow.start


# ---- when


def test_a_request_without_its_first_token_is_copied_to_another_replica(start: Start) -> None:
    driver, lease, copy = racing(start)
    assert (copy.rows, copy.copy_of, copy.charges) == (lease.rows, lease.lease_id, ())
    assert copy.replica_id != lease.replica_id
    assert driver.dispatcher.snapshot(driver.now).hedges == 1


def test_it_is_copied_no_sooner_than_first_tokens_of_its_bucket_take(start: Start) -> None:
    driver = pool(start, first_s=0.05)
    driver.generate(1, 100, 20)
    assert sent(driver.tick(1.049)) == []
    assert len(sent(driver.tick(1.056))) == 1


def test_it_counts_from_when_its_replica_began_with_it(start: Start) -> None:
    driver = pool(start)
    (lease,) = sent(driver.generate(1, 100, 20))
    driver.step(Opened(lease.lease_id), at=1.008)
    assert sent(driver.tick(1.015)) == []
    assert len(sent(driver.tick(1.02))) == 1


@pytest.mark.parametrize(
    "hedge",
    [{"mode": "off"}, {"min_samples": 100}, {"budget": 0.0}, {"max_utilisation": -0.1}],
    ids=lambda hedge: next(iter(hedge)),
)
def test_nothing_is_copied_where_it_may_not_be(start: Start, hedge: dict[str, Any]) -> None:
    driver = pool(start, **hedge)
    driver.generate(1, 100, 20)
    assert sent(driver.tick(1.2)) == []


@pytest.mark.parametrize(
    "request_",
    [{"retryable": False}, {"suspect": True}],
    ids=lambda r: next(iter(r)),
)
def test_what_must_not_run_twice_at_once_is_not_copied(
    start: Start, request_: dict[str, Any]
) -> None:
    driver = pool(start)
    driver.generate(1, 100, 20, **request_)
    assert sent(driver.tick(1.2)) == []


def test_nothing_is_copied_once_a_token_has_come(start: Start) -> None:
    driver = pool(start)
    (lease,) = sent(driver.generate(1, 100, 20))
    driver.moves(lease, 100, 1, at=1.005)
    assert sent(driver.tick(1.5)) == []


def test_no_copy_goes_where_there_is_no_room_or_no_time(start: Start) -> None:
    driver = pool(start, "a")
    driver.streams("a", "b", capacity=119)
    driver.generate(1, 100, 20, slo_s=0.025)
    assert sent(driver.tick(1.016)) == []  # it would be late by the time
    driver.cancel(1)
    driver.drain()


# ---- who wins


def test_the_first_to_show_a_token_goes_on_and_the_other_is_aborted(start: Start) -> None:
    driver, lease, copy = racing(start)
    assert aborted(driver.moves(copy, 100, 1)) == [lease.lease_id]
    assert aborted(driver.close(lease, LeaseEnd.ABORTED, tokens=Tokens(100, 0, 0))) == []
    driver.close(copy, tokens=Tokens(100, 0, 20))
    seen = driver.dispatcher.snapshot(driver.now)
    assert (seen.leases, seen.hedges_won, seen.leased_rows) == (0, 1, 0)


def test_the_first_lease_may_win_too(start: Start) -> None:
    driver, lease, copy = racing(start)
    assert aborted(driver.moves(lease, 100, 1)) == [copy.lease_id]
    driver.close(copy, LeaseEnd.ABORTED)
    driver.close(lease, tokens=Tokens(100, 0, 20))
    assert driver.dispatcher.snapshot(driver.now).hedges_won == 0


def test_an_answer_in_one_piece_wins(start: Start) -> None:
    driver, lease, copy = racing(start)
    assert aborted(driver.close(copy, tokens=Tokens(100, 0, 20))) == [lease.lease_id]
    driver.close(lease, LeaseEnd.ABORTED)


@pytest.mark.parametrize("end", [LeaseEnd.BUSY, LeaseEnd.LOST, LeaseEnd.ABORTED])
def test_when_one_ends_without_a_token_the_other_goes_on(start: Start, end: LeaseEnd) -> None:
    for first in (True, False):
        driver, lease, copy = racing(start)
        gone, left = (lease, copy) if first else (copy, lease)
        driver.opens(copy)
        assert [a for a in driver.close(gone, end) if not isinstance(a, Dispatch)] == []
        driver.moves(left, 100, 1)
        driver.close(left, tokens=Tokens(100, 0, 20))
        assert driver.dispatcher.snapshot(driver.now).leases == 0


def test_when_both_replicas_are_lost_it_is_retried(start: Start) -> None:
    driver, lease, copy = racing(start, "a", "b", "c")
    assert sent(driver.close(lease, LeaseEnd.LOST)) == []
    (again,) = sent(driver.close(copy, LeaseEnd.LOST))
    assert again.replica_id not in (lease.replica_id, copy.replica_id)


def test_a_caller_that_leaves_ends_both(start: Start) -> None:
    driver, lease, copy = racing(start)
    assert set(aborted(driver.cancel(1))) == {lease.lease_id, copy.lease_id}


def test_nothing_new_goes_where_a_lease_is_raced_until_it_shows_a_token(start: Start) -> None:
    driver, lease, copy = racing(start, "a", "b", "c")
    assert {one.replica_id for n in (2, 3) for one in sent(driver.generate(n, 100, 20))} <= (
        {"a", "b", "c"} - {lease.replica_id}
    )
    driver.moves(copy, 100, 1, at=1.03)
    driver.close(lease, LeaseEnd.ABORTED, at=1.03)
    assert all(
        one.replica_id != lease.replica_id for one in sent(driver.generate(4, 100, 20, at=1.035))
    )
    driver.tick(1.2)  # it is doubted no longer than it kept its caller waiting
    used = [sent(driver.generate(n, 100, 20))[0].replica_id for n in range(5, 9)]
    assert lease.replica_id in used


# ---- what it costs


def test_a_copy_is_charged_to_nobody_and_its_answer_as_if_there_had_been_no_race(
    start: Start,
) -> None:
    driver, lease, copy = racing(start)
    before = start_of(driver)
    driver.moves(copy, 100, 1)
    driver.close(lease, LeaseEnd.ABORTED, tokens=Tokens(100, 0, 1))
    driver.close(copy, tokens=Tokens(100, 0, 10))
    assert start_of(driver) == pytest.approx(before - (20 - 10) * 2 / 1000)


def test_the_budget_pays_for_a_prompt_read_twice_and_then_for_what_was_done_twice(
    start: Start,
) -> None:
    driver = pool(start)
    (lease,) = sent(driver.generate(1, 100, 20))
    driver.opens(lease)
    before = budget(driver)
    (copy,) = sent(driver.tick(1.02))
    assert budget(driver) == pytest.approx(before - COST_S)
    driver.moves(copy, 100, 1)
    driver.close(lease, LeaseEnd.ABORTED, tokens=Tokens(60, 20, 0))
    assert budget(driver) == pytest.approx(before - 0.04)


def test_a_copy_that_found_no_room_costs_nothing_and_the_request_may_be_copied_again(
    start: Start,
) -> None:
    driver, lease, copy = racing(start, "a", "b", "c")
    before = budget(driver)
    (again,) = sent(driver.close(copy, LeaseEnd.BUSY, retry_in_s=1.0))
    assert again.copy_of == lease.lease_id
    assert budget(driver) == pytest.approx(before)


def test_a_loser_is_no_sample_of_first_tokens(start: Start) -> None:
    driver, lease, copy = racing(start)
    driver.moves(copy, 100, 1, at=1.03)
    known = driver.dispatcher._groups.reference.engine
    assert known is not None
    before = known.first_token_s(100)
    driver.moves(lease, 100, 1, at=1.9)
    assert known.first_token_s(100) == before
    driver.close(lease, LeaseEnd.ABORTED, tokens=Tokens(100, 0, 1))


# ---- what the engine fails on


def test_what_an_engine_failed_on_runs_once_more_elsewhere_then_fails(start: Start) -> None:
    driver = pool(start)
    (lease,) = sent(driver.generate(1, 100, 20))
    (again,) = sent(driver.close(lease, failed=(0,)))
    assert again.replica_id != lease.replica_id
    (ended,) = driver.close(again, failed=(0,))
    assert isinstance(ended, Evict)
    assert ended.reason is Reason.FAILED


def test_what_one_of_two_fails_on_is_left_to_the_other(start: Start) -> None:
    driver, lease, copy = racing(start)
    assert driver.close(lease, failed=(0,)) == []
    driver.moves(copy, 100, 1)
    driver.close(copy, tokens=Tokens(100, 0, 20))
