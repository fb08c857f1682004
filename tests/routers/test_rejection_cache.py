"""A rejection holds for its like, and only until something has gone."""

import pytest

from routers.api.actions import Reject
from routers.api.requests import Reason
from routers.api.settings import AdmissionParameters
from routers.core.admission import (
    KEPT_S,
    CachedRejection,
    RejectionCache,
    TimesLeft,
)

FLOW = (0, "chat")
TOLD = CachedRejection(TimesLeft(0.1, 1.0), late_by_s=0.05, retry_after_s=0.2)


@pytest.fixture
def rejections():
    rejections = RejectionCache()
    rejections.keep(FLOW, 32, TOLD, at=7, now=10.0)
    return rejections


def asked(rejections, *, flow=FLOW, edge=32, left_s=0.1, expires_s=1.0, at=7, now=10.001):
    return rejections.of(flow, edge, TimesLeft(left_s, expires_s), at, now)


@pytest.mark.parametrize("like", [{}, {"left_s": 0.01}, {"left_s": 0.149}])
def test_the_like_is_told_the_same(rejections, like):
    assert asked(rejections, **like) is TOLD


@pytest.mark.parametrize(
    "other",
    [
        {"flow": (0, "other")},
        {"flow": (1, "chat")},
        {"edge": 16},
        {"edge": 128},
        {"left_s": 0.151},
        {"expires_s": 2.0},
        {"at": 8},
        {"now": 10.0 + KEPT_S},
    ],
)
def test_another_is_asked_anew(rejections, other):
    assert asked(rejections, **other) is None


def test_the_end_of_a_batch_ends_it(rejections):
    rejections.clear()
    assert asked(rejections) is None


def overloaded(start, edges=(32,)):
    """One runs, three wait, and the next short one of two and a half seconds is refused as late."""
    driver = start(
        bucket_edges=edges,
        max_size=1,
        profile=((1, 32, 1.0), (1, 512, 1.0)),
        admission=AdmissionParameters(margin_s=0.0, best_effort_capacity_s=0.0),
    )
    driver.replicas("a")
    for request in (1, 2, 3, 4):
        driver.arrive(request, 20, slo_s=2.5)
    return driver


def test_a_refused_newcomers_like_is_refused_by_a_look(start):
    driver = overloaded(start)
    (refused,) = driver.arrive(5, 20, slo_s=2.5)
    assert isinstance(refused, Reject)
    assert refused.reason is Reason.LATE
    fast_reject = driver.dispatcher.fast_reject("default", 0, 2.5, 100.0, driver.now)
    assert fast_reject == refused.retry_after_s


def test_who_has_more_time_is_let_in(start):
    driver = overloaded(start)
    driver.arrive(5, 20, slo_s=2.5)
    assert not [a for a in driver.arrive(6, 20, slo_s=50.0) if isinstance(a, Reject)]


def test_nothing_is_heard_once_a_row_has_gone(start):
    driver = overloaded(start)
    driver.arrive(5, 20, slo_s=2.5)
    driver.close(driver.open[1], at=1.0)
    assert driver.dispatcher.fast_reject("default", 0, 2.5, 100.0, driver.now) is None


def test_a_longer_row_is_judged_for_itself(start):
    """Of the short ones three wait, of the long ones none: its turn comes sooner."""
    driver = overloaded(start, edges=(32, 512))
    (refused,) = driver.arrive(5, 20, slo_s=2.5)
    assert refused.reason is Reason.LATE
    assert driver.dispatcher.fast_reject("default", 0, 2.5, 100.0, driver.now) is None
    assert not [a for a in driver.arrive(6, 400, slo_s=2.5) if isinstance(a, Reject)]


def test_once_every_length_refuses_nobody_needs_to_read_it(start):
    driver = overloaded(start, edges=(32, 512))
    driver.arrive(5, 20, slo_s=1.9)
    for request in (6, 7):  # the first of a length is let in against the forecast
        driver.arrive(request, 400, slo_s=1.9)
    assert driver.dispatcher.fast_reject("default", 0, 1.9, 100.0, driver.now) is not None


def test_asking_decides_nothing(start):
    """What a long row would be told is not told to the first one, which is let in as a probe."""
    driver = overloaded(start, edges=(32, 512))
    driver.arrive(5, 20, slo_s=1.9)
    driver.dispatcher.fast_reject("default", 0, 1.9, 100.0, driver.now)
    assert driver.arrive(6, 400, slo_s=1.9) == []
