"""Replicas of several groups: each learns for itself, and rows go where they are done first."""

from __future__ import annotations

import pytest

from routers.api.actions import Dispatch
from routers.api.errors import BadSettings
from routers.api.events import Replicas
from routers.api.requests import LeaseEnd, Replica, ReplicaKind
from routers.api.settings import DispatcherSettings, GenerationParameters, GroupSettings, validate
from routers.estimates.groups import ReplicaGroups

EDGES = (32, 128, 512)


def profile(launch_s, row_s):
    return tuple((rows, edge, launch_s + row_s * rows) for rows in (1, 8, 32) for edge in EDGES)


FAST = GroupSettings("fast", profile(0.008, 0.001))
SLOW = GroupSettings("slow", profile(0.02, 0.02))
RESERVE = GroupSettings("slow", profile(0.02, 0.02), after_s=0.05)


def listed(**slots):
    """Replicas by id, one or more slots each; an id begins with its group's name."""
    return Replicas(tuple(Replica(each, n, group=each.split("_")[0]) for each, n in slots.items()))


@pytest.fixture
def two(start):
    def make(*groups, slots=1, slow=("slow_1",), **more):
        core = start(groups=groups or (FAST, SLOW), profile=(), slo_s=0.5, **more)
        core.step(listed(fast_1=slots, **dict.fromkeys(slow, 1)))
        return core

    return make


def sent(actions):
    return [each for each in actions if isinstance(each, Dispatch)]


def groups_of(*groups, **more):
    return ReplicaGroups(DispatcherSettings(EDGES, groups=groups or (FAST, SLOW), **more))


def running(groups, **replicas):
    for name, count in replicas.items():
        group = groups.of(name)
        group.running = group.healthy = count
    groups.count()
    return groups


# ---- what a group knows ------------------------------------------------------------------------


def test_a_model_without_groups_has_one_whose_capacity_is_its_replicas(start):
    core = start()
    core.replicas("a", "b", "c")
    (group,) = core.dispatcher.snapshot(0.0).groups
    assert (group.name, group.running, group.healthy, group.speed) == ("", 3, 3, 1.0)


def test_answers_of_one_group_teach_the_other_nothing(two):
    core = two()
    before = core.dispatcher._groups.of("slow").cost.predict(8, 32)
    for request in range(60):
        for lease in sent(core.arrive(request)):
            assert lease.replica_id == "fast_1"
            core.close(lease, at=core.now + 0.03, service_s=0.03)
    assert core.dispatcher._groups.of("slow").cost.predict(8, 32) == before
    assert core.dispatcher._groups.of("fast").cost.predict(1, 32) == pytest.approx(0.03, rel=0.2)


def test_a_group_that_no_settings_list_starts_without_costs():
    groups = groups_of()
    assert not groups.of("other").cost.measured
    assert groups.of("fast").cost.measured


def test_a_second_is_worth_what_a_row_costs_in_the_groups_typical_batches():
    groups = running(groups_of(), fast=2, slow=1)
    fast, slow = groups.of("fast"), groups.of("slow")
    expected = fast.cost.unit_s(32) / slow.cost.unit_s(32)
    assert slow.speed == pytest.approx(expected, rel=0.05)
    assert groups.capacity == pytest.approx(2 + slow.speed)


def test_what_is_sent_moves_what_a_group_is_worth():
    groups = running(groups_of(), fast=1, slow=1)
    slow = groups.of("slow")
    before = slow.speed
    for _ in range(100):
        slow.cost.observe(8, 32, 2.0, predicted_s=2.0, edge=32)
        groups.weigh(32)
    assert slow.speed < before
    assert groups.capacity == 1.0 + slow.speed


def test_frozen_groups_stay_worth_what_they_were():
    groups = groups_of(frozen=True)
    before = groups.of("slow").speed
    groups.of("slow").cost.observe(8, 32, 9.0, predicted_s=9.0, edge=32)
    groups.weigh(32)
    assert groups.of("slow").speed == before


def test_a_batch_has_as_many_rows_as_its_own_group_takes(two):
    core = two(FAST, GroupSettings("slow", SLOW.profile, max_size=2))
    core.step(listed(slow_1=1))
    (first,) = sent(core.arrive(1, *[10] * 6))
    assert len(first.rows) == 2


def test_a_group_that_is_no_longer_listed_keeps_what_it_knows_while_it_runs():
    groups = running(groups_of(), fast=1, slow=1)
    known = groups.of("slow").cost.predict(1, 32)
    groups.adopt(DispatcherSettings(EDGES, groups=(FAST,)), EDGES)
    assert groups.of("slow").cost.predict(1, 32) == known
    groups.of("slow").running = 0
    groups.adopt(DispatcherSettings(EDGES, groups=(FAST,)), EDGES)
    assert list(groups.by_name) == ["fast"]


def test_the_group_that_is_listed_first_says_what_work_is_counted_in():
    groups = groups_of(SLOW, FAST)
    assert groups.reference.name == "slow"
    assert groups.of("fast").speed > 1.0


@pytest.mark.parametrize(
    "groups",
    [(FAST, FAST), (FAST, GroupSettings("b", after_s=-1.0))],
    ids=["one name twice", "before now"],
)
def test_groups_that_make_no_sense_are_refused(groups):
    with pytest.raises(BadSettings):
        validate(DispatcherSettings(EDGES, groups=groups))


# ---- where rows go -------------------------------------------------------------------------------


def test_the_group_that_finishes_first_is_used_first(two):
    for order in ((FAST, SLOW), (SLOW, FAST)):
        (lease,) = sent(two(*order).arrive(1))
        assert lease.replica_id == "fast_1"


def test_a_row_waits_for_a_busy_fast_replica_that_finishes_it_sooner(two):
    core = two()
    (first,) = sent(core.arrive(1))
    assert not sent(core.arrive(2))
    (second,) = sent(core.close(first, at=0.009, service_s=0.009))
    assert second.replica_id == "fast_1"


def test_a_free_slow_replica_takes_what_would_wait_longer_for_the_fast_one(two):
    core = two()
    core.arrive(0, *[10] * 10)
    assert not sent(core.arrive(1))  # it takes 40 ms there, 18 + 9 ms behind the other
    leases = [each for n in range(2, 200) for each in sent(core.arrive(n))]
    assert {each.replica_id for each in leases} == {"slow_1"}


def test_a_slow_group_alone_serves_everything(two):
    core = two()
    core.step(listed(slow_1=1))
    (lease,) = sent(core.arrive(1))
    assert lease.replica_id == "slow_1"


def test_a_fast_replica_that_is_far_overdue_is_not_waited_for(two):
    core = two()
    core.arrive(1)
    assert not sent(core.arrive(2))
    assert core.timer is not None
    (lease,) = sent(core.tick(core.timer))
    assert lease.replica_id == "slow_1"


def test_a_row_that_only_the_fast_group_can_answer_in_time_is_left_to_it(two):
    core = two()
    core.step(listed(fast_1=1))
    core.arrive(0, *[10] * 32)
    core.arrive(1, slo_s=0.03)
    for request in range(2, 300):
        core.arrive(request, slo_s=5.0)
    (lease,) = sent(core.step(listed(fast_1=1, slow_1=1)))
    assert [request for request, _ in lease.rows][:2] == [2, 3]
    assert core.dispatcher.snapshot(core.now).late_rows == 0


def test_a_row_that_no_group_can_answer_in_time_is_late(two):
    core = two()
    core.step(listed(fast_1=1))
    core.arrive(0, *[10] * 32)
    core.arrive(1, slo_s=0.005)
    for request in range(2, 300):
        core.arrive(request, slo_s=5.0)
    core.step(listed(fast_1=1, slow_1=1))
    assert core.dispatcher.snapshot(core.now).late_rows == 1


def test_a_row_that_was_lost_goes_to_the_other_group(two):
    core = two()
    (first,) = sent(core.arrive(1))
    (second,) = sent(core.close(first, LeaseEnd.LOST))
    assert second.replica_id == "slow_1"


# ---- reserves ------------------------------------------------------------------------------------


def test_a_reserve_is_not_used_while_the_others_would_not_let_anything_wait_so_long(two):
    core = two(FAST, RESERVE)
    core.arrive(0)
    for request in range(1, 20):
        core.arrive(request)
    assert {each.replica_id for each in core.open.values()} == {"fast_1"}
    assert [each.is_open for each in core.dispatcher.snapshot(0.0).groups] == [True, False]


def test_a_reserve_is_used_once_the_others_would_let_it_wait_longer(two):
    core = two(FAST, RESERVE)
    for request in range(200):
        core.arrive(request)
    assert {each.replica_id for each in core.open.values()} == {"fast_1", "slow_1"}


def test_a_reserve_is_used_at_once_when_no_other_replica_is_well(two):
    core = two(FAST, RESERVE)
    core.step(listed(slow_1=1))
    (lease,) = sent(core.arrive(1))
    assert lease.replica_id == "slow_1"


def test_a_reserve_alone_is_used(two):
    core = two(RESERVE, GroupSettings("other", after_s=1.0))
    core.step(listed(slow_1=1))
    assert sent(core.arrive(1))


# ---- who pays ------------------------------------------------------------------------------------


def test_a_tenant_pays_for_its_rows_not_for_where_they_were_served(two):
    core = two()
    core.step(listed(slow_1=1))
    speed = core.dispatcher._groups.of("slow").speed
    (lease,) = sent(core.arrive(1))
    ((_, _, charged_s),) = lease.charges
    assert charged_s == pytest.approx(speed * lease.predicted_s)
    core.close(lease, at=core.now + 0.1, service_s=2 * lease.predicted_s)
    (flow,) = core.dispatcher.snapshot(core.now).flows
    assert flow.served_s == pytest.approx(2 * charged_s)


def test_what_another_gateway_was_served_on_a_slow_group_counts_as_that_much_work(two):
    core = two()
    core.step(listed(slow_1=1))
    speed = core.dispatcher._groups.of("slow").speed
    (lease,) = sent(core.arrive(1, tenant="a"))
    core.arrive(2, tenant="b")
    flows = core.dispatcher._requests.flows
    before = flows.tag(flows.by_key[0, "b"])
    core.close(lease, at=0.04, service_s=0.04, served=((0, "b", 1.0),))
    after = flows.tag(flows.by_key[0, "b"])
    assert after - before == pytest.approx(speed, rel=0.2)


def test_outliers_are_found_within_a_group(two):
    core = two(slow=("slow_1", "slow_2", "slow_3"))
    for request in range(400):
        leases = sent(core.arrive(request, *[10] * 40))
        while leases:
            lease = leases.pop(0)
            at = core.now + lease.predicted_s
            leases += sent(core.close(lease, at=at, service_s=lease.predicted_s))
    seen = core.dispatcher.snapshot(core.now).replicas
    assert {each.group for each in seen} == {"fast", "slow"}
    assert not [each for each in seen if each.ejected]


# ---- generation ----------------------------------------------------------------------------------

ENGINE = ((1, 1, 0.01), (8, 8, 0.012), (8, 512, 0.1))
SLOW_ENGINE = tuple((running, tokens, 8 * seconds) for running, tokens, seconds in ENGINE)


def streams(core, **tokens):
    kind = ReplicaKind.STREAM
    return core.step(
        Replicas(tuple(Replica(n, c, kind, 8, n.split("_")[0]) for n, c in tokens.items()))
    )


@pytest.fixture
def engines(start):
    def make(**reserve):
        core = start(
            profile=(),
            generation=GenerationParameters(),
            groups=(
                GroupSettings("fast", engine_profile=ENGINE),
                GroupSettings("slow", engine_profile=SLOW_ENGINE, **reserve),
            ),
        )
        streams(core, fast_1=100, slow_1=1000)
        return core

    return make


def test_a_prompt_goes_to_the_faster_engine_and_beyond_its_room_to_the_other(engines):
    core = engines()
    first, second = (sent(core.generate(n, 50, 20)) for n in (1, 2))
    assert first[0].replica_id == "fast_1"
    assert second[0].replica_id == "slow_1"


def test_a_prompt_too_large_for_one_groups_cache_saves_no_room_there(engines):
    core = engines()
    (small,) = sent(core.generate(1, 50, 20))
    assert small.replica_id == "fast_1"
    (large,) = sent(core.generate(2, 400, 100))
    assert large.replica_id == "slow_1"
    assert not sent(core.generate(3, 500, 100))
    (beside,) = sent(core.generate(4, 20, 5))
    assert beside.replica_id == "fast_1"


def test_engines_of_a_reserve_wait_until_the_others_are_full_for_long(engines):
    core = engines(after_s=0.5)
    for n in range(1, 4):
        core.generate(n, 50, 20)
    assert {each.replica_id for each in core.open.values()} == {"fast_1"}
    for n in range(4, 60):
        core.generate(n, 50, 20)
    assert {each.replica_id for each in core.open.values()} == {"fast_1", "slow_1"}
