"""What the limit learns from waits, what it ignores, and who is refused by it."""

import pytest

from routers.api.settings import LimitParameters, Mode
from routers.policies.admission.controllers import LearntLimit

A, B = (0, "a"), (0, "b")
ENFORCE = LimitParameters(Mode.ENFORCE, least=16, most=1000)
SLACK_S = 0.1


def run(limit, share, inflight, since=0.0, seconds=5.0, flow=A, every_s=0.005):
    """All requests wait this share of their slack while so many are in the core."""
    now = since
    while now < since + seconds:
        limit.sheds(flow, inflight, now)
        limit.waited(flow, share * SLACK_S, SLACK_S, now)
        now += every_s
    return now


def test_limit_stands_at_its_most_until_something_waits_long():
    limit = LearntLimit(ENFORCE)
    run(limit, 0.3, 200)
    assert limit.limits() == {A: 1000}


@pytest.mark.parametrize("share", [0.6, 1.0])
def test_long_waits_lower_it_below_what_is_in_the_core(share):
    limit = LearntLimit(ENFORCE)
    run(limit, share, 200, seconds=2.0)
    assert limit.limits()[A] < 200
    assert limit.sheds(A, 200, 2.0)


def test_it_never_falls_below_its_least_nor_rises_above_its_most():
    limit = LearntLimit(ENFORCE)
    now = run(limit, 1.0, 16, seconds=60.0)
    assert limit.limits()[A] == 16
    run(limit, 0.1, 1000, since=now, seconds=60.0)
    assert limit.limits()[A] == 1000


def test_unused_limit_does_not_grow():
    limit = LearntLimit(ENFORCE)
    now = run(limit, 1.0, 200, seconds=1.0)
    now = run(limit, 0.1, 5, since=now, seconds=1.0)
    before = limit.limits()[A]
    run(limit, 0.1, 5, since=now, seconds=30.0)
    assert limit.limits()[A] == before


def test_used_limit_grows_again_once_waits_are_short():
    limit = LearntLimit(ENFORCE)
    now = run(limit, 1.0, 100, seconds=2.0)
    low = limit.limits()[A]
    run(limit, 0.2, int(low), since=now, seconds=3.0)
    assert limit.limits()[A] > 1.5 * low


def test_length_of_service_is_no_congestion():
    """Rows that take seconds but hardly wait leave the limit where it is."""
    limit = LearntLimit(ENFORCE)
    for n in range(200):
        limit.sheds(A, 100, 2.0 * n)
        limit.waited(A, 0.1, 5.0, 2.0 * n)
    assert limit.limits() == {A: 1000}


def test_few_samples_teach_nothing():
    limit = LearntLimit(ENFORCE)
    for n in range(9):
        limit.sheds(A, 500, float(n))
        limit.waited(A, 1.0, SLACK_S, float(n))
    assert limit.limits()[A] == 1000


def test_request_without_slack_counts_as_one_that_waited_all_of_it():
    limit = LearntLimit(ENFORCE)
    for n in range(100):
        limit.sheds(A, 100, 0.01 * n)
        limit.waited(A, 0.0, 0.0, 0.01 * n)
    assert limit.limits()[A] < 100


def test_flows_have_limits_of_their_own():
    limit = LearntLimit(ENFORCE)
    run(limit, 1.0, 100, flow=A)
    run(limit, 0.1, 20, flow=B)
    assert limit.sheds(A, 100, 6.0)
    assert not limit.sheds(B, 100, 6.0)


@pytest.mark.parametrize(("inflight", "refused"), [(0, False), (6, False), (7, True), (8, True)])
def test_fixed_limit_learns_nothing(inflight, refused):
    limit = LearntLimit(LimitParameters(Mode.ENFORCE, fixed=7))
    run(limit, 1.0, 3)
    assert limit.limits() == {A: 7}
    assert limit.sheds(A, inflight, 9.0) is refused


def test_observing_refuses_nobody_and_counts():
    limit = LearntLimit(LimitParameters(Mode.OBSERVE, fixed=1))
    assert not limit.sheds(A, 5, 0.0)
    assert limit.verdicts.would_shed == 1


def test_switched_off_it_refuses_nobody():
    limit = LearntLimit(LimitParameters(Mode.OFF, fixed=1))
    assert not limit.sheds(A, 5, 0.0)
    assert limit.verdicts.would_shed == 0


def test_frozen_limit_stays():
    limit = LearntLimit(ENFORCE)
    now = run(limit, 1.0, 100, seconds=1.0)
    before = limit.limits()
    limit.tune(ENFORCE, frozen=True)
    run(limit, 1.0, 100, since=now)
    assert limit.limits() == before
