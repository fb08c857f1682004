"""Which replica a batch is sent to: sessions, new replicas, stragglers, other gateways' work."""

import pytest

from routers.api.actions import Dispatch
from routers.api.requests import LeaseEnd
from routers.api.settings import GenerationParameters


def sent(actions):
    return [each for each in actions if isinstance(each, Dispatch)]


def answered(core, lease, service_s=0.01):
    return core.close(lease, at=core.now + service_s, service_s=service_s, transport_s=0.0)


# ---- sessions


def test_a_session_returns_to_its_replica_where_that_costs_nothing(start):
    core = start()
    core.replicas("a", "b", "c")
    (first,) = core.arrive(1, session="s")
    answered(core, first)
    for request_id in (2, 3):
        (lease,) = core.arrive(request_id, session="s")
        assert lease.replica_id == first.replica_id
        answered(core, lease)


def test_a_session_goes_elsewhere_while_its_replica_is_busy_and_stays_there(start):
    core = start(initial_cost_s=0.01)
    core.replicas("a", "b", capacity=2)
    (first,) = core.arrive(1, session="s")
    (second,) = core.arrive(2, session="s")
    assert second.replica_id != first.replica_id
    answered(core, first)
    answered(core, second)
    (third,) = core.arrive(3, session="s")
    assert third.replica_id == second.replica_id


def test_a_session_leaves_a_stream_that_is_full(start):
    core = start(initial_cost_s=0.01, generation=GenerationParameters())
    core.streams("a", "b", capacity=100)
    (first,) = core.arrive(1, 30, session="s")
    (second,) = core.arrive(2, 80, session="s")
    assert second.replica_id != first.replica_id


# ---- new replicas


def test_a_replica_without_a_profile_is_sent_single_rows_until_it_has_answered(start):
    core = start(profile=())
    for request_id in range(6):
        core.arrive(request_id)
    (first,) = sent(core.replicas("a"))
    assert len(first.rows) == 1
    (second,) = sent(answered(core, first))
    assert len(second.rows) == 5


def test_one_that_joins_later_starts_with_a_single_row_too(start):
    core = start(profile=(), max_size=4)
    core.replicas("a")
    (first,) = core.arrive(0)
    answered(core, first)
    (busy,) = core.arrive(1)
    for request_id in range(2, 7):
        core.arrive(request_id)
    (new,) = sent(core.replicas("a", "b"))
    assert (new.replica_id, len(new.rows)) == ("b", 1)
    assert len(sent(answered(core, busy))[0].rows) == 4


# ---- stragglers


def straggler(start, *ids):
    """Batches are known to take 10 ms; one that began at 1.0 has not been answered at 1.1."""
    core = start(initial_cost_s=0.01)
    core.replicas(*ids, capacity=2)
    (stuck,) = core.arrive(1, at=1.0)
    core.tick(1.1)
    return core, stuck


def test_nothing_is_staged_behind_a_lease_that_is_far_overdue(start):
    core, stuck = straggler(start, "a", "b")
    used = [each.replica_id for n in range(2, 6) for each in sent(core.arrive(n, at=1.1))]
    assert used
    assert stuck.replica_id not in used


def test_an_overdue_replica_is_used_while_it_is_the_only_one(start):
    core, stuck = straggler(start, "a")
    assert [each.replica_id for each in sent(core.arrive(2, at=1.1))] == [stuck.replica_id]


def test_it_is_trusted_again_when_it_has_answered(start):
    core, stuck = straggler(start, "a", "b")
    core.close(stuck, at=1.2)
    assert not any(each.unhealthy for each in core.dispatcher.snapshot(1.2).replicas)


def test_all_being_overdue_is_no_reason_to_wait(start):
    core, _ = straggler(start, "a", "b")
    core.arrive(2, at=1.1)
    core.tick(1.2)
    assert len(sent(core.arrive(3, at=1.2))) == 1


# ---- other gateways


def test_what_other_gateways_run_counts_for_the_choice(start):
    core = start(initial_cost_s=0.01)
    core.replicas("a", "b")
    leases = core.arrive(1) + core.arrive(2)
    for lease in leases:
        foreign_s = 0.5 if lease.replica_id == "b" else 0.0
        core.close(lease, at=1.0, service_s=0.01, free_in_s=foreign_s, seen=9)
    assert [each.replica_id for each in core.arrive(3, at=1.0)] == ["a"]
    assert core.arrive(4, at=1.0) == []
    assert sent(core.tick(1.45)) == []
    assert [each.replica_id for each in sent(core.tick(1.5))] == ["b"]


def test_a_replica_that_others_have_left_idle_is_sent_what_comes_later(start):
    """It became ready while it was expected to be busy, and nothing was asked since."""
    driver = start()
    driver.replicas("a", "b", capacity=2)
    driver.arrive(1)
    driver.arrive(2)
    for lease in list(driver.open.values()):
        driver.close(
            lease, at=1.0, transport_s=0.002, free_in_s=0.02, inflight=1, seen=lease.lease_id
        )
    driver.tick(at=1.019)
    (sent,) = driver.arrive(3, at=1.5)
    assert isinstance(sent, Dispatch)


def test_what_was_returned_unstarted_waits_less_the_way_there(start):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1)
    core.close(lease, at=1.0, service_s=0.01, transport_s=0.002)
    (lease,) = core.arrive(2, at=2.0)
    core.close(lease, LeaseEnd.BUSY, retry_in_s=0.01)
    assert core.timer == pytest.approx(2.008)
