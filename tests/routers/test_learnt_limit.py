"""What the limit learns from waits, what it ignores, and who is refused by it."""

import pytest

from routers.api.settings import AdmissionParameters, LimitParameters, Mode
from routers.policies.admission.learnt_limit import LearntLimit
from routers.policies.admission.types import REFUSE
from tests.routers.newcomers import ask, came, found, tuned

A, B = (0, "a"), (0, "b")
ENFORCE = LimitParameters(Mode.ENFORCE, least=16, most=1000)
SLACK_S = 0.1


def made(parameters=ENFORCE):
    limit = LearntLimit()
    tuned(limit, AdmissionParameters(limit=parameters))
    return limit


def limits(limit):
    shown = {(priority, tenant): each for priority, tenant, each in limit.by_flow(0.0)}
    assert limit.value(1.0, 0.0) == min(shown.values())
    return shown


def sheds(limit, flow, inflight, now):
    """Whether one is refused that comes while so many of its flow are in the core."""
    return ask(limit, found(came(flow, now, inflight=inflight), now), now) is REFUSE


def waited(limit, flow, wait_s, slack_s, now):
    tracked = came(flow, 0.0, slack_s=slack_s)
    limit.waited(tracked.flow, tracked, wait_s, now, taken=True)


def run(limit, share, inflight, since=0.0, seconds=5.0, flow=A, every_s=0.005):
    """All requests wait this share of their slack while so many are in the core."""
    now = since
    while now < since + seconds:
        sheds(limit, flow, inflight, now)
        waited(limit, flow, share * SLACK_S, SLACK_S, now)
        now += every_s
    return now


def test_limit_stands_at_its_most_until_something_waits_long():
    limit = made()
    run(limit, 0.3, 200)
    assert limits(limit) == {A: 1000}


@pytest.mark.parametrize("share", [0.6, 1.0])
def test_long_waits_lower_it_below_what_is_in_the_core(share):
    limit = made()
    run(limit, share, 200, seconds=2.0)
    assert limits(limit)[A] < 200
    assert sheds(limit, A, 200, 2.0)


def test_it_never_falls_below_its_least_nor_rises_above_its_most():
    limit = made()
    now = run(limit, 1.0, 16, seconds=60.0)
    assert limits(limit)[A] == 16
    run(limit, 0.1, 1000, since=now, seconds=60.0)
    assert limits(limit)[A] == 1000


def test_unused_limit_does_not_grow():
    limit = made()
    now = run(limit, 1.0, 200, seconds=1.0)
    now = run(limit, 0.1, 5, since=now, seconds=1.0)
    before = limits(limit)[A]
    run(limit, 0.1, 5, since=now, seconds=30.0)
    assert limits(limit)[A] == before


def test_used_limit_grows_again_once_waits_are_short():
    limit = made()
    now = run(limit, 1.0, 100, seconds=2.0)
    low = limits(limit)[A]
    run(limit, 0.2, int(low), since=now, seconds=3.0)
    assert limits(limit)[A] > 1.5 * low


def test_length_of_service_is_no_congestion():
    """Rows that take seconds but hardly wait leave the limit where it is."""
    limit = made()
    for n in range(200):
        sheds(limit, A, 100, 2.0 * n)
        waited(limit, A, 0.1, 5.0, 2.0 * n)
    assert limits(limit) == {A: 1000}


def test_few_samples_teach_nothing():
    limit = made()
    for n in range(9):
        sheds(limit, A, 500, float(n))
        waited(limit, A, 1.0, SLACK_S, float(n))
    assert limits(limit)[A] == 1000


def test_request_without_slack_counts_as_one_that_waited_all_of_it():
    limit = made()
    for n in range(100):
        sheds(limit, A, 100, 0.01 * n)
        waited(limit, A, 0.0, 0.0, 0.01 * n)
    assert limits(limit)[A] < 100


def test_flows_have_limits_of_their_own():
    limit = made()
    run(limit, 1.0, 100, flow=A)
    run(limit, 0.1, 20, flow=B)
    assert sheds(limit, A, 100, 6.0)
    assert not sheds(limit, B, 100, 6.0)


@pytest.mark.parametrize(("inflight", "refused"), [(0, False), (6, False), (7, True), (8, True)])
def test_fixed_limit_learns_nothing(inflight, refused):
    limit = made(LimitParameters(Mode.ENFORCE, fixed=7))
    run(limit, 1.0, 3)
    assert limits(limit) == {A: 7}
    assert sheds(limit, A, inflight, 9.0) is refused


def test_frozen_limit_stays():
    limit = made()
    now = run(limit, 1.0, 100, seconds=1.0)
    before = limits(limit)
    tuned(limit, AdmissionParameters(limit=ENFORCE), frozen=True)
    run(limit, 1.0, 100, since=now)
    assert limits(limit) == before
