"""How many rows may wait: what settings say, or what can be answered before it expires."""

import pytest

from routers.api.actions import Reject
from routers.api.requests import Reason
from routers.policies.admission.queue_bound import LEAST_ROWS, MOST_ROWS, most_rows

FAST = ((1, 10, 0.001), (32, 10, 0.001))  # 32,000 rows a second
SLOW = ((1, 10, 1.0), (32, 10, 1.0))


def bound(driver):
    core = driver.dispatcher
    return most_rows(core._requests.settings, core._groups, 10, rows=1)


@pytest.mark.parametrize(
    ("profile", "replicas", "timeout_s", "rows"),
    [
        (FAST, "a", 0.1, 3200),
        (FAST, "ab", 0.1, 6400),
        (FAST, "a", 10.0, MOST_ROWS),
        (SLOW, "a", 1.0, LEAST_ROWS + 1),
    ],
)
def test_as_many_wait_as_are_answered_before_they_expire(start, profile, replicas, timeout_s, rows):
    driver = start(bucket_edges=(10,), profile=profile, queue_timeout_s=timeout_s)
    driver.replicas(*replicas)
    assert bound(driver) == pytest.approx(rows, rel=0.01)


def test_while_none_runs_one_replica_counts(start):
    driver = start(bucket_edges=(10,), profile=FAST, queue_timeout_s=0.1)
    assert bound(driver) == pytest.approx(3200, rel=0.01)


@pytest.mark.parametrize("more", [{}, {"queue_timeout_s": 5.0, "profile": ()}])
def test_a_number_in_the_settings_or_unknown_costs_leave_their_bound(start, more):
    driver = start(**{"bucket_edges": (10,), "profile": SLOW, "max_queue_rows": 40, **more})
    assert bound(driver) == 40


def test_one_more_than_may_wait_is_refused(start):
    driver = start(bucket_edges=(10,), profile=SLOW, queue_timeout_s=1.0)
    driver.arrive(1, *[10] * LEAST_ROWS, slo_s=1e6, timeout_s=1e6)
    assert driver.arrive(2, 10, slo_s=1e6, timeout_s=1e6) == []
    (refused,) = driver.arrive(3, 10, slo_s=1e6, timeout_s=1e6)
    assert isinstance(refused, Reject)
    assert refused.reason is Reason.QUEUE_FULL
    driver.replicas("a")


def test_a_large_request_finds_a_place_while_few_rows_wait(start):
    driver = start(bucket_edges=(10,), profile=SLOW, queue_timeout_s=1.0)
    driver.replicas("a")
    for request in range(1, 6):
        driver.arrive(request, 10, slo_s=1e6, timeout_s=1e6)
    sent = driver.arrive(6, *[10] * 600, slo_s=1e6, timeout_s=1e6)
    assert not [each for each in sent if isinstance(each, Reject)]
    (refused,) = driver.arrive(7, *[10] * 600, slo_s=1e6, timeout_s=1e6)
    assert refused.reason is Reason.QUEUE_FULL
