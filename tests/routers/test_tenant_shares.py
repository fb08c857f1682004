"""A full queue's places are shared by weight: who is under its share takes one from who is over."""

import itertools
import random

import pytest

from routers.api.actions import Dispatch, Evict, Reject
from routers.api.events import Arrive
from routers.api.requests import LeaseEnd, Reason, Request
from routers.api.settings import AdmissionParameters

SHORT = {"max_queue_rows": 8, "max_late_rows": 8}
IDS = itertools.count(1)


def fill(core, tenant, requests, **more):
    """Sends so many requests of a row each; ids of the refused, and of those evicted for them."""
    refused, evicted = [], []
    for _ in range(requests):
        number = next(IDS)
        for action in core.arrive(number, tenant=tenant, **more):
            assert not isinstance(action, Dispatch)
            assert action.reason is Reason.QUEUE_FULL
            assert action.retry_after_s > 0.0
            (refused if isinstance(action, Reject) else evicted).append(action.request_id)
    return refused, evicted


def waiting(core):
    shares = core.dispatcher._requests.waiting.shares
    return {share.tenant: share.rows for share in shares.by_tenant.values()}


def test_a_tenant_alone_may_have_every_place(start):
    core = start(**SHORT)
    assert fill(core, "a", 8) == ([], [])
    refused, evicted = fill(core, "a", 5)
    assert (len(refused), evicted) == (5, [])
    assert waiting(core) == {"a": 8}


def test_who_is_under_its_share_takes_places_from_who_is_over(start):
    core = start(**SHORT)
    fill(core, "a", 8)
    refused, evicted = fill(core, "b", 4)
    assert (refused, len(evicted)) == ([], 4)
    assert waiting(core) == {"a": 4, "b": 4}


def test_who_has_its_share_is_refused_and_evicts_nobody(start):
    core = start(**SHORT)
    fill(core, "a", 8)
    fill(core, "b", 4)
    for tenant in ("a", "b"):
        refused, evicted = fill(core, tenant, 3)
        assert (len(refused), evicted) == (3, [])
    assert waiting(core) == {"a": 4, "b": 4}


def test_shares_are_by_weight(start):
    core = start(**SHORT)
    fill(core, "a", 8, weight=1.0)
    fill(core, "b", 20, weight=3.0)
    assert waiting(core) == {"a": 2, "b": 6}
    fill(core, "c", 20, weight=4.0)
    assert waiting(core) == {"a": 1, "b": 3, "c": 4}


def test_the_one_furthest_over_its_share_loses_the_place(start):
    core = start(**SHORT)
    fill(core, "a", 5)
    fill(core, "b", 3)
    fill(core, "c", 1)
    assert waiting(core) == {"a": 4, "b": 3, "c": 1}


def test_what_is_least_urgent_and_due_last_is_evicted_first(start):
    core = start(**SHORT)
    fill(core, "a", 4, priority=0)
    bulk = [next(IDS) for _ in range(4)]
    for number, slo_s in zip(bulk, (10.0, 40.0, 20.0, 30.0), strict=True):
        core.arrive(number, tenant="a", priority=2, slo_s=slo_s)
    _, evicted = fill(core, "b", 2)
    assert set(evicted) <= set(bulk)
    assert bulk[0] not in evicted


def test_a_request_of_many_rows_makes_room_for_all_of_them(start):
    core = start(**SHORT)
    fill(core, "a", 8)
    actions = core.arrive(next(IDS), 10, 10, 10, 10, tenant="b")
    assert [type(action) for action in actions] == [Evict] * 4
    assert waiting(core) == {"a": 4, "b": 4}
    rejected = core.arrive(next(IDS), 10, 10, tenant="c", weight=0.5)
    assert [type(action) for action in rejected] == [Reject]


@pytest.mark.slow
def test_a_flood_never_refuses_a_tenant_under_its_share_while_replicas_work(start):
    """A floods at ten times what is served; B asks for a little."""
    core = start(max_queue_rows=40, max_late_rows=40, max_size=4, profile=((1, 10, 0.01),))
    core.replicas("r1")
    rng, of_b = random.Random(5), set()
    for step in range(400):
        core.now = step * 0.01
        for _ in range(10):
            core.arrive(next(IDS), tenant="flood", slo_s=5.0)
        if rng.random() < 0.5:
            number = next(IDS)
            of_b.add(number)
            assert not [each for each in core.arrive(number, tenant="b") if told(each, of_b)]
        for lease in list(core.open.values()):
            assert not [each for each in core.close(lease, service_s=0.01) if told(each, of_b)]
    assert waiting(core)["flood"] <= 40


def told(action, ids):
    return isinstance(action, Evict | Reject) and action.request_id in ids


def test_a_bound_on_work_leaves_each_tenant_its_share_of_it(start):
    core = start(initial_cost_s=0.01, admission=AdmissionParameters(max_queue_s=0.05))
    refused, _ = fill(core, "a", 200)
    assert refused
    assert fill(core, "b", 1) == ([], [])


def test_a_dispatcher_says_who_would_find_no_place(start):
    core = start(**SHORT)
    fill(core, "a", 8)
    assert core.dispatcher.is_full("a", 1.0)
    assert not core.dispatcher.is_full("b", 1.0)
    fill(core, "b", 4)
    assert core.dispatcher.is_full("b", 1.0)
    assert core.dispatcher.is_full("c", 1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_shares_are_right_whatever_comes_and_goes(start, seed):
    core, rng, live = start(**SHORT), random.Random(seed), []
    for _ in range(300):
        if live and rng.random() < 0.3:
            core.cancel(live.pop(rng.randrange(len(live))))
            continue
        number, tenant = next(IDS), rng.choice("abcde")
        rows = [10] * rng.choice((1, 1, 1, 2, 3))
        before = waiting(core)
        actions = core.arrive(number, *rows, tenant=tenant, weight=1.0 + "abcde".index(tenant))
        evicted = [action.request_id for action in actions if isinstance(action, Evict)]
        for _ in evicted:
            assert max(before.values()) >= waiting(core).get(tenant, 0) / 5.0
        live = [each for each in [*live, number] if each not in evicted]


def test_taking_places_costs_no_more_with_many_tenants(start):
    """Work, not time: how many entries of the order one place looks at."""
    core = start(max_queue_rows=2000, max_late_rows=2000)
    for number in range(999):
        fill_unchecked(core, f"t{number}", 2)
    fill_unchecked(core, "last", 2)
    shares = core.dispatcher._requests.waiting.shares
    assert shares.furthest_over() is not None
    pushed = len(shares._heap)
    for number in range(50):
        fill_unchecked(core, f"new{number}", 1)
    assert len(shares._heap) <= pushed + 50


def fill_unchecked(core, tenant, requests):
    """Without checking invariants, which scans everything."""
    for _ in range(requests):
        request = Request(next(IDS), (10,), core.now, core.now + 10.0, core.now + 20.0, tenant)
        core.dispatcher.step(Arrive(request), core.now)


def lose(core, tenant, rows):
    """As many single-row requests of the tenant that a lost replica held, which wait once more."""
    core.replicas("lost")
    (lease,) = core.arrive(next(IDS), *[10] * rows, tenant=tenant)
    core.close(lease, LeaseEnd.LOST)
    core.replicas()


def test_retried_rows_take_no_place_from_a_tenant_under_its_share(start):
    core = start(**SHORT)
    lose(core, "a", 6)
    fill(core, "a", 4)
    refused, evicted = fill(core, "b", 4)
    assert (refused, evicted) == ([], [])
    assert waiting(core) == {"a": 4, "b": 4}


def test_nobody_is_evicted_for_a_request_that_gets_no_place(start):
    core = start(**SHORT)
    lose(core, "b", 6)
    fill(core, "b", 5)
    fill(core, "a", 2)
    rejected = core.arrive(next(IDS), *[10] * 4, tenant="a")
    assert [type(action) for action in rejected] == [Reject]
    assert waiting(core) == {"a": 2, "b": 5}


def test_suspects_that_wait_lose_their_places_like_others(start):
    core = start(**SHORT)
    fill(core, "a", 8, suspect=True)
    refused, evicted = fill(core, "b", 5)
    assert (len(refused), len(evicted)) == (1, 4)
    assert waiting(core) == {"a": 4, "b": 4}
