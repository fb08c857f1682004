"""How many rows may wait: what settings say, or what can be answered before it expires."""

import pytest

from routers.api.actions import Dispatch, Evict, Reject
from routers.api.events import Arrive, PeersServed
from routers.api.requests import Generation, Reason, Report, Request, Tokens
from routers.api.settings import GenerationParameters
from routers.shared.bounds import MAX_ROWS, MIN_ROWS, max_rows

FAST = ((1, 10, 0.001), (32, 10, 0.001))  # 32,000 rows a second
SLOW = ((1, 10, 1.0), (32, 10, 1.0))


def bound(driver):
    return max_rows(driver.dispatcher._requests.bounds, rows=1)


@pytest.mark.parametrize(
    ("profile", "replicas", "timeout_s", "rows"),
    [
        (FAST, "a", 0.1, 3200),
        (FAST, "ab", 0.1, 6400),
        (FAST, "a", 10.0, MAX_ROWS),
        (SLOW, "a", 1.0, MIN_ROWS + 1),
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
    driver.arrive(1, *[10] * MIN_ROWS, slo_s=1e6, timeout_s=1e6)
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


# ---- models that generate


def generating(start, timeout_s, *, answers=1, **generation):
    """A stream replica of a thousand weighted tokens a second, unless it is told otherwise; one
    request takes 300: a prompt of 100 and an output of 100."""
    known = {"tokens_per_s": 1000.0} | generation
    settings = GenerationParameters(**known)
    driver = start(bucket_edges=(10, 1000), generation=settings, queue_timeout_s=timeout_s)
    driver.streams("a", capacity=100_000)
    for number in range(answers):
        answer(driver, 900_000 + number)
    return driver


def answer(driver, request, output=100):
    (lease,) = driver.generate(request, 100, 500)
    driver.close(lease, tokens=Tokens(100, 0, output))


@pytest.mark.parametrize(
    ("timeout_s", "rows"),
    [(0.5, MIN_ROWS + 1), (5.0, MIN_ROWS + 1), (600.0, 2000), (1e6, MAX_ROWS)],
)
def test_as_many_generations_wait_as_can_be_answered_before_they_expire(start, timeout_s, rows):
    assert bound(generating(start, timeout_s)) == pytest.approx(rows, rel=1e-3)


def test_two_replicas_answer_twice_as_many(start):
    driver = generating(start, 600.0)
    driver.streams("a", "b", capacity=100_000)
    assert bound(driver) == pytest.approx(4000, rel=1e-3)


def test_the_cost_of_a_generation_is_the_mean_of_those_answered_lately(start):
    driver = generating(start, 600.0, answers=0)
    for request, output in enumerate((0, 50, 150, 100)):  # 0: nothing was generated
        answer(driver, request, output)
    assert bound(driver) == pytest.approx(2000, rel=1e-3)
    generations = driver.dispatcher._requests.generations
    plan = generations.plan(Request(1, (100,), 0.0, 1.0, 1.0), Generation(500))
    for _ in range(300):
        generations.answered(plan, Tokens(100, 20, 400))
    assert bound(driver) == pytest.approx(600 * 1000 / 880, rel=0.02)


@pytest.mark.parametrize("missing", [{"answers": 0}, {"tokens_per_s": None}])
def test_until_speed_and_costs_are_known_the_settings_bound_generations(start, missing):
    driver = generating(start, 600.0, **missing)
    assert bound(driver) == 2048


def test_a_number_in_the_settings_bounds_generations(start):
    assert bound(generating(start, None)) == 2048


def test_frozen_nothing_is_learnt_of_what_generations_take(start):
    settings = GenerationParameters(tokens_per_s=1000.0)
    driver = start(bucket_edges=(10, 1000), generation=settings, queue_timeout_s=600.0, frozen=True)
    driver.streams("a", capacity=100_000)
    answer(driver, 1)
    assert bound(driver) == 2048


def test_one_generation_more_than_may_wait_is_refused(start):
    driver = generating(start, 5.0)
    driver.streams("a", capacity=100)
    patient = {"slo_s": 1e6, "timeout_s": 1e6}
    driver.generate(0, 50, 10, **patient)
    for request in range(1, MIN_ROWS + 2):
        asked = Request(request, (50,), 0.0, 1e6, 1e6, generation=Generation(10))
        assert driver.dispatcher.step(Arrive(asked), 0.0) == []
    (refused,) = driver.generate(10_000, 50, 10, **patient)
    assert refused.reason is Reason.QUEUE_FULL


# ---- several gateways


def beside(driver, served_s, seconds):
    """The replica answers one batch a second, and says what it served for others meanwhile."""
    for _ in range(seconds):
        driver.now += 1.0
        (lease,) = [
            each for each in driver.arrive(int(driver.now * 1000), 10) if isinstance(each, Dispatch)
        ]
        work = ((0, "default", served_s),) if served_s else ()
        driver.close(lease, service_s=0.0001, seen=lease.lease_id, served=work)


@pytest.mark.parametrize(
    ("taken", "rows"), [(0.0, 3200), (0.5, 1600), (0.75, 800), (1.0, MIN_ROWS + 1)]
)
def test_a_gateway_queues_what_others_leave_it_of_the_replicas(start, taken, rows):
    driver = start(bucket_edges=(10,), profile=FAST, queue_timeout_s=0.1, frozen=True)
    driver.replicas("a")
    beside(driver, taken, 40)
    assert bound(driver) == pytest.approx(rows, rel=0.02)


def test_what_others_ceased_to_take_is_used_again(start):
    driver = start(bucket_edges=(10,), profile=FAST, queue_timeout_s=0.1, frozen=True)
    driver.replicas("a")
    beside(driver, 0.5, 40)
    beside(driver, 0.0, 30)
    assert bound(driver) == pytest.approx(3200, rel=0.02)


def test_a_bound_that_falls_evicts_no_more_than_a_newcomer_needs(start):
    driver = start(bucket_edges=(10,), profile=FAST, queue_timeout_s=0.1, frozen=True)
    driver.replicas("a")
    beside(driver, 0.0, 2)
    patient = {"slo_s": 1e6, "timeout_s": 1e6}
    driver.arrive(1, 10, tenant="x", **patient)
    for request in range(2, 1002):
        asked = Request(request, (10,), driver.now, 1e6, 1e6, tenant="x")
        assert driver.dispatcher.step(Arrive(asked), driver.now) == []
    driver.now += 60.0
    report = Report(served=((0, "default", 60.0),))  # others have had all of it
    driver.step(PeersServed("a", report))
    assert bound(driver) == MIN_ROWS + 1
    evicted = driver.arrive(5000, 10, tenant="y", **patient)
    assert [type(action) for action in evicted] == [Evict]


def test_what_others_took_of_a_replica_goes_with_it(start):
    driver = start(bucket_edges=(10,), profile=FAST, queue_timeout_s=0.1, frozen=True)
    driver.replicas("a")
    beside(driver, 0.5, 40)
    driver.replicas("b")
    assert bound(driver) == pytest.approx(3200, rel=0.02)
