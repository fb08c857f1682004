"""What was asked for is counted once, whatever became of it, and nothing that is not demand."""

import pytest

from routers.api.events import RefusedUnread, ServedElsewhere
from routers.api.requests import LeaseEnd, Reason
from routers.state.flows import MeanWork, OfferedWork

# 10 ms a batch and 10 ms a row, of any length: a full batch of 4 takes 50 ms, a row of it 12.5 ms.
LINEAR = tuple((rows, edge, 0.01 + 0.01 * rows) for rows in (1, 2, 4) for edge in (32, 128, 512))
ROW_S = 0.0125


def offered(driver):
    return driver.dispatcher.snapshot(driver.now).offered


@pytest.fixture
def busy(start):
    """A core with one replica that holds a batch, and room for two more rows."""
    driver = start(profile=LINEAR, max_size=4, slo_s=10.0, max_queue_rows=2)
    driver.replicas("a")
    driver.arrive(100)
    return driver


def test_each_row_is_priced_as_its_part_of_a_full_batch_however_small_batches_are(start):
    driver = start(profile=LINEAR, max_size=4, slo_s=10.0)
    driver.replicas("a")
    for number in range(1, 41):
        driver.arrive(number, 10)
        driver.drain()
    found = offered(driver)
    assert found.work_s == pytest.approx(40 * ROW_S, rel=0.05)
    assert found.requests == 40
    assert found.sq_s2 == pytest.approx(40 * ROW_S**2, rel=0.1)


def test_rows_of_a_request_add_up_and_count_by_the_length_of_the_first(start):
    driver = start(profile=LINEAR, max_size=4, slo_s=10.0)
    driver.arrive(1, 33, 5, 5)
    driver.arrive(2, 32)
    driver.arrive(3, 1)
    found = offered(driver)
    assert found.work_s == pytest.approx(5 * ROW_S, rel=0.03)
    by_length = dict(found.by_length)
    assert set(by_length) == {1, 32, 64}
    assert by_length[64] == pytest.approx(3 * ROW_S, rel=0.03)
    driver.replicas("a")


def test_what_finds_the_queue_full_was_offered_all_the_same(busy):
    for number in (1, 2, 3, 4):
        busy.arrive(number)
    found = offered(busy)
    assert found.requests == 5
    assert found.work_s == pytest.approx(5 * ROW_S, rel=0.03)
    assert dict(found.refused) == {"queue_full": 2}


def test_what_is_evicted_counts_as_refused_and_stays_offered(busy):
    busy.arrive(1, timeout_s=1.0, slo_s=1.0)
    busy.tick(at=2.0)
    found = offered(busy)
    assert dict(found.refused) == {"expired": 1}
    assert found.requests == 2


@pytest.mark.parametrize(
    ("lengths", "more", "reason"),
    [
        ((513,), {}, "too_long"),
        ((1,) * 3, {}, "too_large"),
        ((1,), {"timeout_s": 0.0}, "expired"),
        ((1, 1), {"tenant_rows": 1}, "tenant_full"),
    ],
)
def test_what_no_replica_could_change_is_no_demand(busy, lengths, more, reason):
    busy.arrive(1, *lengths, **more)
    found = offered(busy)
    assert found.requests == 1
    assert dict(found.refused) == {reason: 1}


def test_what_a_cheaper_model_takes_is_not_offered_again(busy):
    for number in (1, 2, 3):
        busy.arrive(number, is_first=False)
    assert offered(busy).requests == 1
    assert dict(offered(busy).refused) == {"queue_full": 1}


def test_served_work_has_the_price_it_was_offered_at(start):
    driver = start(profile=LINEAR, max_size=4, slo_s=10.0)
    driver.replicas("a")
    for number in range(1, 4):
        driver.arrive(number)
    driver.drain()
    found = offered(driver)
    assert found.served_s == pytest.approx(found.work_s)


def test_lost_work_is_neither_served_nor_offered_twice(start):
    driver = start(profile=LINEAR, max_size=4, slo_s=10.0)
    driver.replicas("a")
    (lease,) = driver.arrive(1)
    driver.close(lease, LeaseEnd.LOST)
    found = offered(driver)
    assert found.requests == 1
    assert found.served_s == 0.0
    driver.tick(at=driver.timer)
    assert offered(driver).requests == 1


def test_a_generation_is_priced_at_a_full_replica(start):
    from routers.api.settings import GenerationParameters

    generation = GenerationParameters(output_tokens=100)
    driver = start(generation=generation, bucket_edges=(1000,), slo_s=10.0)
    driver.streams("a", capacity=1000)
    driver.generate(1, 100, 200)
    found = offered(driver)
    assert found.work_s > 0.0
    assert found.work_s == pytest.approx(driver.open[1].predicted_s)
    assert dict(found.by_length) == {128: found.work_s}


# ---- refused by headers alone --------------------------------------------------------------------


def test_an_unread_refusal_counts_as_its_flows_mean(start):
    driver = start(profile=LINEAR, max_size=4, slo_s=10.0)
    for number in range(1, 5):
        driver.arrive(number, tenant="small")
        driver.arrive(10 + number, *(5,) * 4, tenant="large")
    before = offered(driver)
    driver.step(RefusedUnread("large", 0, Reason.QUEUE_FULL, True))
    found = offered(driver)
    assert found.work_s - before.work_s == pytest.approx(4 * ROW_S, rel=0.03)
    assert found.requests == before.requests + 1
    assert found.sq_s2 / found.work_s == pytest.approx(before.sq_s2 / before.work_s)
    assert dict(found.refused) == {"queue_full": 1}
    driver.replicas("a")


def test_an_unread_refusal_of_a_new_flow_counts_as_the_mean_of_all(start):
    driver = start(profile=LINEAR, max_size=4, slo_s=10.0)
    driver.arrive(1, tenant="small")
    driver.arrive(2, 5, 5, 5, tenant="large")
    driver.step(RefusedUnread("new", 0, Reason.LATE, True))
    assert offered(driver).work_s == pytest.approx(6 * ROW_S, rel=0.03)
    driver.replicas("a")


@pytest.mark.parametrize(("reason", "first"), [(Reason.TENANT_FULL, True), (Reason.LATE, False)])
def test_unread_refusals_that_are_no_demand_are_counted_as_refusals_only(start, reason, first):
    driver = start(profile=LINEAR)
    driver.arrive(1)
    driver.step(RefusedUnread("default", 0, reason, first))
    found = offered(driver)
    assert found.requests == 1
    assert dict(found.refused) == {reason.value: 1}
    driver.replicas("a")


def test_unread_refusals_before_anything_was_read_ask_for_nothing_known():
    work = OfferedWork()
    work.add_unread(None)
    assert (work.requests, work.work_s) == (1, 0.0)
    work.add(0.5, 0, MeanWork())
    assert work.snapshot().by_length == ((1, 0.5),)


# ---- what a replica is planned with -------------------------------------------------------------


def test_a_group_says_what_a_full_batch_takes_and_how_it_scatters(start):
    driver = start(profile=LINEAR, max_size=4, slo_s=10.0)
    driver.replicas("a")
    (group,) = driver.dispatcher.snapshot(0.0).groups
    assert group.planned_s == pytest.approx(0.05, rel=0.03)  # of nothing sent: the longest's
    assert group.planned_p99_s == pytest.approx(group.planned_s)
    assert group.planned_scv == pytest.approx(0.0, abs=1e-9)
    for number in range(1, 65):
        (lease,) = driver.arrive(number)
        driver.close(lease, service_s=0.02 * (1.3 if number % 8 == 0 else 1.0))
    (group,) = driver.dispatcher.snapshot(0.0).groups
    assert group.planned_s == pytest.approx(0.05, rel=0.25)
    assert group.planned_p99_s > 1.1 * group.planned_s
    assert 0.003 < group.planned_scv < 0.03


def test_batches_of_several_kinds_scatter_more_than_each_kind_does(start):
    two = tuple((rows, edge, rows * edge * 1e-3) for rows in (1, 2, 4) for edge in (32, 512))
    driver = start(profile=two, max_size=4, slo_s=100.0, bucket_edges=(32, 512))
    driver.replicas("a")
    for number in range(1, 101):
        (lease,) = driver.arrive(number, 32 if number % 2 else 512, slo_s=100.0)
        driver.close(lease)
    (group,) = driver.dispatcher.snapshot(0.0).groups
    short_s, long_s = 4 * 32e-3, 4 * 512e-3
    assert short_s < group.planned_s < long_s
    assert group.planned_scv > 0.5


def test_what_others_answered_was_offered_and_served_here(start):
    driver = start(profile=LINEAR, max_size=4, slo_s=10.0)
    driver.step(ServedElsewhere("t", 0, (33, 5, 100_000)))
    found = offered(driver)
    assert found.requests == 1
    assert found.work_s == found.served_s == pytest.approx(3 * ROW_S, rel=0.03)
    assert set(dict(found.by_length)) == {64}
    assert not found.refused
    driver.step(ServedElsewhere("t", 0, ()))  # as the others on average
    found = offered(driver)
    assert found.work_s == found.served_s == pytest.approx(6 * ROW_S, rel=0.03)
    assert found.requests == 2
