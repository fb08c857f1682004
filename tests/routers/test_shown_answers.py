"""An answer of which its caller has had a part neither runs again nor gives way: it goes on where
it is, or ends with that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from routers.api.actions import Abort, Action, Dispatch, Evict
from routers.api.events import Close
from routers.api.requests import LeaseEnd, Reason
from routers.api.settings import (
    GenerationParameters,
    HedgeParameters,
    OutlierParameters,
    SilenceParameters,
)
from tests.routers.conftest import Driver

Start = Callable[..., Driver]
LEARNT = GenerationParameters(tokens_per_s=1000.0, prompt_tokens_per_s=10_000.0, output_tokens=20)
ALONE = HedgeParameters("off", budget=10.0)
INTERRUPTED = [Evict(1, Reason.INTERRUPTED)]


def sent(actions: list[Action]) -> list[Dispatch]:
    return [each for each in actions if isinstance(each, Dispatch)]


def begin(start: Start, *ids: str, hedge: HedgeParameters = ALONE, **more: object) -> Driver:
    driver = start(generation=LEARNT, hedge=hedge, **more)
    driver.streams(*(ids or ("a", "b")), capacity=10_000, max_leases=8)
    return driver


def running(start: Start, *, streams: bool = True, **request: object) -> tuple[Driver, Dispatch]:
    """Request 1, whose first token has come."""
    driver = begin(start)
    (lease,) = sent(driver.generate(1, 100, 20, streams=streams, **request))
    driver.moves(lease, 100, 1, at=0.01)
    return driver, lease


# ---- lost


def test_what_was_lost_after_its_caller_had_a_part_ends_with_that(start: Start) -> None:
    driver, lease = running(start)
    assert driver.close(lease, LeaseEnd.LOST) == INTERRUPTED


def test_what_was_lost_before_runs_again(start: Start) -> None:
    driver = begin(start)
    (lease,) = sent(driver.generate(1, 100, 20, streams=True))
    assert len(sent(driver.close(lease, LeaseEnd.LOST))) == 1


def test_an_answer_that_is_given_whole_runs_again_however_far_it_was(start: Start) -> None:
    driver, lease = running(start, streams=False)
    (again,) = sent(driver.close(lease, LeaseEnd.LOST))
    assert again.replica_id != lease.replica_id


def test_signs_of_life_without_a_token_are_a_part_of_an_answer(start: Start) -> None:
    """A chat's first piece says who speaks."""
    driver = begin(start)
    (lease,) = sent(driver.generate(1, 100, 20, streams=True))
    driver.moves(lease, 100, 0)
    assert driver.close(lease, LeaseEnd.LOST) == INTERRUPTED


@pytest.mark.parametrize("end", [LeaseEnd.BUSY, LeaseEnd.ABORTED])
def test_a_replica_that_gives_back_what_it_began_has_lost_it(start: Start, end: LeaseEnd) -> None:
    driver, lease = running(start)
    assert driver.close(lease, end) == INTERRUPTED


@pytest.mark.parametrize("streams", [True, False])
def test_what_may_not_run_twice_ends_all_the_same(start: Start, streams: bool) -> None:
    driver, lease = running(start, streams=streams, retryable=False)
    reason = Reason.INTERRUPTED if streams else Reason.LOST
    assert driver.close(lease, LeaseEnd.LOST) == [Evict(1, reason)]


def test_its_end_says_so_also_where_the_model_was_withdrawn(start: Start) -> None:
    driver, lease = running(start)
    assert driver.step(Close()) == []
    assert driver.close(lease, LeaseEnd.LOST) == INTERRUPTED


def test_a_caller_that_has_left_is_told_nothing(start: Start) -> None:
    driver, lease = running(start)
    assert driver.cancel(1) == [Abort(lease.lease_id, lease.replica_id)]
    assert driver.close(lease, LeaseEnd.LOST) == []


def test_what_its_engine_failed_on_fails_with_what_was_shown(start: Start) -> None:
    driver, lease = running(start)
    assert driver.close(lease, failed=(0,)) == [Evict(1, Reason.FAILED)]


def test_what_its_engine_failed_on_runs_again_where_it_is_given_whole(start: Start) -> None:
    driver, lease = running(start, streams=False)
    assert len(sent(driver.close(lease, failed=(0,)))) == 1


def test_what_was_shown_is_counted_among_what_was_refused(start: Start) -> None:
    driver, lease = running(start)
    driver.close(lease, LeaseEnd.LOST)
    assert dict(driver.dispatcher.snapshot(driver.now).offered.refused) == {"replica_lost": 1}


@pytest.mark.parametrize("streams", [True, False])
def test_a_flow_pays_for_what_was_shown_before_its_replica_was_lost(
    start: Start, streams: bool
) -> None:
    driver, lease = running(start, streams=streams, retryable=False)
    driver.moves(lease, 100, 9, at=0.2)
    driver.close(lease, LeaseEnd.LOST)
    (flow,) = driver.dispatcher.snapshot(driver.now).flows
    assert (flow.served_s > 0) is streams


# ---- copies and probes

RACES = HedgeParameters(fixed_delay_s=0.01, budget=10.0, max_utilisation=1.0)


def racing(start: Start, **more: object) -> tuple[Driver, Dispatch, Dispatch]:
    """Request 1's lease, and its copy."""
    driver = begin(start, "a", "b", "c", hedge=RACES, **more)
    (lease,) = sent(driver.generate(1, 100, 20, streams=True, priority=2))
    driver.opens(lease)
    (copy,) = sent(driver.tick(0.02))
    return driver, lease, copy


@pytest.mark.parametrize("winner", [0, 1])
def test_the_winner_of_a_race_is_not_replaced_by_the_loser(start: Start, winner: int) -> None:
    driver, *leases = racing(start)
    won, lost = leases[winner], leases[1 - winner]
    assert driver.moves(won, 100, 1) == [Abort(lost.lease_id, lost.replica_id)]
    assert driver.close(won, LeaseEnd.LOST) == INTERRUPTED
    driver.close(lost, LeaseEnd.ABORTED)


def test_one_of_two_that_race_is_lost_unnoticed(start: Start) -> None:
    driver, lease, copy = racing(start)
    assert driver.close(lease, LeaseEnd.LOST) == []
    driver.moves(copy, 100, 1)
    assert driver.close(copy, LeaseEnd.LOST) == INTERRUPTED


def test_a_probes_piece_is_shown_to_nobody(start: Start) -> None:
    outliers = OutlierParameters(probe_s=0.01, max_probe_s=0.01)
    driver = begin(start, outliers=outliers)
    slow = driver.dispatcher._replicas.by_id["a"]
    driver.dispatcher._ejection.eject(slow, 0.0)
    driver.dispatcher._replicas.refresh(slow, 0.0)
    driver.now = 0.5
    lease, probe = sent(driver.generate(1, 100, 20, streams=True))
    assert (lease.replica_id, probe.replica_id) == ("b", "a")
    assert driver.moves(probe, 100, 1) == [Abort(probe.lease_id, "a")]
    driver.close(probe, LeaseEnd.ABORTED)
    assert len(sent(driver.close(lease, LeaseEnd.LOST))) == 1


# ---- preemption


def preempting(start: Start, **more: object) -> Driver:
    driver = start(**{"preempt_streams": True, "generation": GenerationParameters()} | more)
    driver.streams("s", capacity=100)
    return driver


def test_what_its_caller_has_a_part_of_is_not_stopped_for_more_urgent_work(start: Start) -> None:
    """The one that began before it is, of which nothing has come."""
    driver = preempting(start, generation=LEARNT)
    first, second = [sent(driver.generate(n, 30, 20, streams=True, priority=2))[0] for n in (1, 2)]
    driver.moves(second, 0, 0)  # who speaks, and no token
    assert driver.generate(3, 30, 20, streams=True, priority=0) == [Abort(first.lease_id, "s")]


def test_nothing_is_stopped_where_all_have_begun_to_be_shown(start: Start) -> None:
    driver = preempting(start)
    for n in (1, 2):
        (lease,) = sent(driver.arrive(n, 50, priority=2, streams=True))
        driver.moves(lease, 50, 1, held=50)
    assert driver.arrive(3, 40, priority=0) == []
    assert driver.dispatcher.snapshot(driver.now).preempted == 0


def test_a_replica_is_asked_for_one_again_when_the_last_has_come_back(start: Start) -> None:
    driver = preempting(start)
    shown, other = [sent(driver.arrive(n, 50, priority=2, streams=True))[0] for n in (1, 2)]
    driver.moves(shown, 50, 1, held=50)
    assert driver.arrive(3, 50, priority=0) == [Abort(other.lease_id, "s")]
    (urgent,) = sent(driver.close(other, LeaseEnd.ABORTED))
    (again,) = sent(driver.close(urgent))
    assert again.rows == other.rows
    assert driver.dispatcher.snapshot(driver.now).preempted == 1


def test_a_piece_that_crosses_the_abort_is_shown_to_nobody(start: Start) -> None:
    driver = preempting(start, generation=LEARNT)
    (bulk,) = sent(driver.generate(1, 60, 20, streams=True, priority=2))
    assert driver.generate(2, 60, 20, priority=0) == [Abort(bulk.lease_id, "s")]
    driver.moves(bulk, 60, 1)
    (urgent,) = sent(driver.close(bulk, LeaseEnd.ABORTED))
    (again,) = sent(driver.close(urgent))
    assert again.rows == bulk.rows


# ---- silence


@pytest.mark.parametrize("streams", [True, False])
def test_what_has_begun_is_not_moved_from_a_silent_replica(start: Start, streams: bool) -> None:
    driver = begin(start, silence=SilenceParameters(fixed_s=0.1))
    first, *others = [sent(driver.generate(n, 100, 20, streams=streams))[0] for n in (1, 2, 3, 4)]
    driver.moves(first, 100, 1, at=0.01)
    stays = [each for each in others if each.replica_id == first.replica_id]
    for each in others:
        if each not in stays:
            driver.moves(each, 100, 1, at=0.01)
    moved = driver.tick(0.15)
    assert stays
    assert [each.rows for each in sent(moved)] == [each.rows for each in stays]
