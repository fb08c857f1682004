"""A replica that goes silent under load costs a moment, a false alarm next to nothing."""

from __future__ import annotations

from functools import cache

from tests.simulation.benches.silence import (
    GONE,
    PAUSES,
    SLOW,
    UNWATCHED,
    WATCHED,
    WATCHED_STREAMS,
    batches,
    chats,
)

RATE = 1180.0


@cache
def ran(trouble, watched=True):
    return batches(trouble, WATCHED if watched else UNWATCHED, RATE, seed=1)


def test_what_a_silent_replica_held_is_answered_in_a_moment_not_after_a_minute():
    watched, unwatched = ran(GONE), ran(GONE, watched=False)
    assert unwatched.felt.unanswered > 0  # their callers gave up after 10 s
    assert watched.felt.unanswered == 0
    assert watched.felt.longest_s < 0.5
    assert watched.end.suspensions == 1


def test_a_collection_of_garbage_is_no_silence():
    assert ran(PAUSES[0]).end.suspensions == 0


def test_a_false_alarm_runs_a_few_rows_twice_and_makes_nobody_wait_longer():
    watched, unwatched = ran(PAUSES[-1]), ran(PAUSES[-1], watched=False)
    assert watched.end.suspensions == 1
    assert watched.duplicates <= 2 * 32
    assert watched.felt.longest_s <= unwatched.felt.longest_s
    assert watched.felt.in_slo >= unwatched.felt.in_slo - 5


def test_a_slow_replica_is_the_outliers_business():
    assert ran(SLOW).end.suspensions == 0


def test_generation_that_had_not_begun_is_begun_elsewhere():
    watched, unwatched = chats(GONE, WATCHED_STREAMS, 1), chats(GONE, UNWATCHED, 1)
    assert watched.felt.unanswered < unwatched.felt.unanswered
    assert watched.end.moved_rows > 0
