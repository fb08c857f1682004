"""Replicas that other gateways use too: starts are reported, and waits are no slowness."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from routers.api.actions import Dispatch
from routers.api.events import GatewayPlace
from routers.api.settings import HedgeParameters
from tests.routers.conftest import Driver

Start = Callable[..., Driver]


def one(actions: list[object]) -> Dispatch:
    (lease,) = [each for each in actions if isinstance(each, Dispatch)]
    return lease


def core_of(start: Start, *ids: str, mode: str = "hedge", capacity: int = 1) -> Driver:
    hedge = HedgeParameters(mode=mode, max_utilisation=1.0, min_samples=1, budget=1.0)
    core = start(hedge=hedge, initial_cost_s=0.01)
    core.replicas(*ids, capacity=capacity)
    return core


def answer(core: Driver, lease: Dispatch, after_s: float = 0.01, *, shared: bool = True) -> None:
    """`shared`: the answer says that another gateway was served there."""
    served = ((0, "x", 0.01),) if shared else ()
    report = {"seen": lease.lease_id, "served": served, "service_s": 0.01}
    core.close(lease, at=core.now + after_s, **report)


def run(core: Driver, batches: int, *, shared: bool = True) -> None:
    for request_id in range(-batches, 0):
        lease = one(core.arrive(request_id))
        if lease.tells_start:
            core.opens(lease)
        answer(core, lease, shared=shared)


def copy(core: Driver) -> Dispatch:
    """The next copy of a batch, at the time when it is sent."""
    while core.timer is not None and core.timer > core.now:
        for action in core.tick(core.timer):
            if isinstance(action, Dispatch):
                return action
    raise AssertionError("nothing is copied")


# ---- start reports


def test_batches_tell_their_start_once_another_gateway_was_seen_at_their_replica(
    start: Start,
) -> None:
    core = core_of(start, "a", "b")
    first = one(core.arrive(1))
    assert not first.tells_start
    answer(core, first)
    other, same = one(core.arrive(2)), one(core.arrive(3))
    assert [each.tells_start for each in (other, same)] == [False, True]
    assert same.replica_id == first.replica_id != other.replica_id


def test_a_copy_tells_its_start_too(start: Start) -> None:
    core = core_of(start, "a", "b")
    run(core, 4)
    core.arrive(1)
    assert copy(core).tells_start


def test_ten_seconds_after_the_last_sign_of_another_gateway_no_start_is_told(start: Start) -> None:
    core = core_of(start, "a", "b")
    run(core, 2)
    assert one(core.arrive(1, at=core.now + 9.9)).tells_start
    assert not one(core.arrive(2, at=core.now + 0.2)).tells_start


@pytest.mark.parametrize(("ids", "mode"), [(("a",), "hedge"), (("a", "b"), "off")])
def test_no_start_is_told_where_no_batch_would_be_copied(
    start: Start, ids: tuple[str, ...], mode: str
) -> None:
    core = core_of(start, *ids, mode=mode)
    run(core, 2)
    assert not one(core.arrive(1)).tells_start


# ---- what the delay of a copy is learnt from


def copied_after(core: Driver) -> float:
    """Seconds from a batch's start until it is copied."""
    began_at = core.now
    core.opens(one(core.arrive(1)))
    copy(core)
    return core.now - began_at


def test_a_wait_for_another_gateways_batches_is_no_slowness(start: Start) -> None:
    core = core_of(start, "a", "b")
    run(core, 8)
    for request_id in range(10, 18):
        answer(core, one(core.arrive(request_id)), after_s=0.1)
    assert copied_after(core) == pytest.approx(0.01, abs=0.001)


def test_at_replicas_of_its_own_the_whole_time_of_an_answer_is_a_sample(start: Start) -> None:
    core = core_of(start, "a", "b")
    run(core, 8, shared=False)
    for request_id in range(10, 18):
        answer(core, one(core.arrive(request_id)), after_s=0.1, shared=False)
    assert copied_after(core) == pytest.approx(0.1, rel=0.1)


# ---- which idle replica is used


def used(core: Driver, batches: int, **more: float) -> list[str]:
    """The replicas of so many batches, each sent when all are idle."""
    ids = []
    for request_id in range(1000, 1000 + batches):
        lease = one(core.arrive(request_id))
        answer(core, lease, **more)
        ids.append(lease.replica_id)
    return ids


def placed(start: Start, index: int, count: int, *ids: str) -> Driver:
    core = core_of(start, *ids)
    core.step(GatewayPlace(index, count))
    return core


def order(core: Driver) -> list[str]:
    """In which a burst uses the replicas."""
    leases = [one(core.arrive(request_id)) for request_id in range(len(core.open), 4)]
    for lease in leases:
        answer(core, lease)
    return [lease.replica_id for lease in leases]


def test_two_gateways_begin_at_opposite_ends(start: Start) -> None:
    first, second = (placed(start, index, 2, "a", "b", "c", "d") for index in (0, 1))
    assert order(first) == ["a", "b", "c", "d"]
    assert order(second) == ["d", "c", "b", "a"]


def test_of_four_gateways_each_pair_begins_in_its_half(start: Start) -> None:
    ids = "a", "b", "c", "d"
    orders = [order(placed(start, index, 4, *ids)) for index in range(4)]
    assert [each[0] for each in orders] == ["a", "b", "c", "d"]


def test_every_replica_is_used_now_and_then_whatever_the_order(start: Start) -> None:
    core = placed(start, 0, 2, "a", "b", "c")
    ids = used(core, 48)
    assert {each: ids.count(each) for each in "abc"} == {"a": 44, "b": 2, "c": 2}


def test_a_gateway_that_is_left_alone_uses_its_replicas_in_turn_again(start: Start) -> None:
    core = placed(start, 1, 2, "a", "b", "c")
    assert used(core, 3) == ["c", "c", "c"]
    core.step(GatewayPlace(0, 1))
    assert used(core, 6) == ["a", "b", "c", "a", "b", "c"]


def test_a_slower_replica_comes_last_whatever_the_order(start: Start) -> None:
    core = placed(start, 0, 2, "a", "b")
    for request_id in range(200):
        lease = one(core.arrive(request_id))
        slow_s = 0.02 if lease.replica_id == "a" else 0.01
        core.close(lease, at=core.now + slow_s, seen=lease.lease_id, service_s=slow_s)
    assert used(core, 8) == ["b"] * 8
