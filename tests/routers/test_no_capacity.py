"""While no replica runs: what can wait until one does waits, what cannot is told when to come."""

import pytest

from routers.api.actions import Reject
from routers.api.events import CapacityExpected
from routers.api.requests import Reason
from routers.api.settings import AdmissionParameters, Mode


def asleep(start, in_s=12.0, **settings):
    driver = start(slo_s=0.1, **settings)
    driver.step(CapacityExpected(in_s))
    return driver


def refused(actions):
    return [(each.reason, each.retry_after_s) for each in actions if isinstance(each, Reject)]


def test_what_lives_until_a_replica_is_there_waits(start):
    driver = asleep(start)
    assert driver.arrive(1, slo_s=0.1, timeout_s=12.1) == []
    driver.tick(at=11.0)  # it is late, and waits on
    sent = driver.replicas("a", at=12.0)
    assert [each.rows for each in sent] == [((1, 0),)]


def test_what_is_over_before_is_told_when_one_is_there(start):
    driver = asleep(start)
    assert refused(driver.arrive(1, slo_s=0.1, timeout_s=11.9)) == [(Reason.LATE, 12.0)]
    driver.step(CapacityExpected(3.0))
    assert refused(driver.arrive(2, slo_s=0.1, timeout_s=2.0)) == [(Reason.LATE, 3.0)]
    assert driver.arrive(3, slo_s=0.1, timeout_s=11.9) == []
    driver.replicas("a")


def test_who_may_not_be_late_must_live_until_then_by_its_deadline(start):
    driver = asleep(start, late="refuse")
    assert refused(driver.arrive(1, slo_s=1.0, timeout_s=100.0)) == [(Reason.LATE, 12.0)]
    assert driver.arrive(2, slo_s=20.0, timeout_s=100.0) == []
    driver.replicas("a")


def test_where_nobody_knows_when_everything_waits(start):
    driver = asleep(start, in_s=0.0)
    assert driver.arrive(1, slo_s=0.1, timeout_s=1.0) == []
    driver.replicas("a")


def test_once_a_replica_runs_what_was_expected_does_not_count(start):
    driver = asleep(start)
    driver.replicas("a")
    assert refused(driver.arrive(1, slo_s=1.0, timeout_s=1.0)) == []


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.OBSERVE])
def test_a_controller_that_may_not_refuse_lets_it_wait(start, mode):
    driver = asleep(start, admission=AdmissionParameters(feasibility=mode))
    assert driver.arrive(1, slo_s=0.1, timeout_s=1.0) == []
    (found,) = [
        each for each in driver.dispatcher.snapshot(0.0).controllers if each.name == "feasibility"
    ]
    assert (found.shed, found.would_shed) == (0, int(mode is Mode.OBSERVE))
    driver.replicas("a")


def test_the_like_is_refused_by_its_headers_until_one_is_expected_sooner(start):
    driver = asleep(start)
    driver.arrive(1, slo_s=0.1, timeout_s=1.0)
    fast = driver.dispatcher.fast_reject
    assert fast("default", 0, 0.1, 1.0, driver.now) == 12.0
    assert fast("default", 0, 0.1, 60.0, driver.now) is None
    driver.step(CapacityExpected(0.5))
    assert fast("default", 0, 0.1, 1.0, driver.now) is None


def test_a_full_queue_says_when_there_will_be_somebody_to_empty_it(start):
    driver = asleep(start, max_queue_rows=1)
    driver.arrive(1, timeout_s=100.0)
    assert refused(driver.arrive(2, timeout_s=100.0)) == [(Reason.QUEUE_FULL, 12.0)]
    assert driver.dispatcher.retry_after_s() == 12.0
    driver.step(CapacityExpected(500.0))
    assert driver.dispatcher.retry_after_s() == 60.0
    driver.replicas("a")


def test_refused_demand_was_offered(start):
    driver = asleep(start)
    driver.arrive(1, slo_s=0.1, timeout_s=1.0)
    driver.arrive(2, slo_s=0.1, timeout_s=1.0)
    found = driver.dispatcher.snapshot(0.0).offered
    assert found.requests == 2
    assert dict(found.refused) == {"late": 2}
