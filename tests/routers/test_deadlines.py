"""Deadlines, being late and expiring."""

from __future__ import annotations

import pytest

from routers.api.actions import Abort, Dispatch, Evict, Reject
from routers.api.requests import LeaseEnd, Reason, Request
from routers.api.settings import AdmissionParameters, DispatcherSettings
from routers.estimates.turnaround import Turnaround
from routers.policies.order import FairQueueing
from routers.shared.bounds import has_place, is_over, is_refused, next_moment
from routers.state.flows import Flow, Flows
from routers.state.request_queue import RequestQueue
from routers.state.rows import Row, TrackedRequest
from routers.state.tenant_shares import TenantShare
from routers.state.timers import Timers


def requests_of(*actions):
    return [[request for request, _ in each.rows] for each in actions if isinstance(each, Dispatch)]


# ---- expiry


@pytest.mark.parametrize("replicas", [(), ("busy",)])
def test_waiting_request_is_evicted_when_it_expires(start, replicas):
    core = start()
    core.replicas(*replicas)
    core.arrive(0)
    core.arrive(1, slo_s=1.0, timeout_s=5.0)
    core.tick(core.timer)
    assert core.timer == 5.0
    assert core.tick(4.999) == []
    assert core.tick(5.0) == [Evict(1, Reason.EXPIRED)]


def test_nothing_is_dispatched_at_its_expiry(start):
    core = start()
    core.arrive(1, timeout_s=5.0)
    core.arrive(2, timeout_s=5.001)
    evicted, sent = core.replicas("a", at=5.0)
    assert evicted == Evict(1, Reason.EXPIRED)
    assert requests_of(sent) == [[2]]


def test_late_timer_still_evicts_before_dispatch(start):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1)
    core.arrive(2, timeout_s=1.0)
    assert core.close(lease, at=50.0) == [Evict(2, Reason.EXPIRED)]


def test_expired_request_leaves_a_running_batch_and_its_answer_is_ignored(start):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1, timeout_s=5.0)
    assert core.tick(5.0) == [Evict(1, Reason.EXPIRED), Abort(lease.lease_id, "a")]
    assert core.close(lease, at=6.0) == []


def test_request_with_several_rows_expires_whole(start):
    core = start(max_size=1)
    core.replicas("a")
    core.arrive(1, 10, 20, 500, timeout_s=5.0)
    assert [type(action) for action in core.tick(5.0)] == [Evict, Abort]
    assert core.dispatcher.snapshot(5.0).waiting_rows == 0


def test_answer_in_the_moment_of_expiry_counts(start):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1, timeout_s=5.0)
    assert core.close(lease, at=5.0) == []


def test_lost_row_without_budget_is_evicted(start):
    core = start()
    core.replicas("a", "b")
    (lease,) = core.arrive(1, timeout_s=5.0)
    assert core.close(lease, LeaseEnd.LOST, at=5.0) == [Evict(1, Reason.LOST)]


# ---- the timer


def test_timer_is_asked_for_once_and_again_when_it_is_earlier(start):
    core = start()
    core.arrive(1, slo_s=5.0)
    assert core.timer == 5.0
    core.timer = None
    core.arrive(2, slo_s=6.0)
    assert core.timer is None
    core.arrive(3, slo_s=4.0)
    assert core.timer == 4.0


def test_timer_that_fires_early_is_asked_for_again(start):
    core = start()
    core.arrive(1, slo_s=5.0)
    core.timer = None
    core.tick(4.99)
    assert core.timer == 5.0


def test_timer_is_forgotten_with_the_last_request(start):
    core = start()
    core.arrive(1, slo_s=5.0)
    core.cancel(1)
    core.timer = None
    core.tick(5.0)
    assert core.timer is None


# ---- lateness


def test_late_rows_go_behind_all_that_are_on_time(start):
    core = start()
    core.arrive(1, 128, slo_s=1.0)
    core.arrive(2, 10, slo_s=9.0)
    core.arrive(3, 500, slo_s=9.0)
    core.tick(1.0)
    assert core.dispatcher.snapshot(1.0).late_rows == 1
    assert requests_of(*core.replicas("a"), *core.drain())[-1] == [1]


def test_row_is_late_at_its_deadline_and_not_before(start):
    core = start()
    core.arrive(1, slo_s=1.0)
    core.tick(0.999)
    assert core.dispatcher.snapshot(0.999).late_rows == 0
    core.tick(1.0)
    assert core.dispatcher.snapshot(1.0).late_rows == 1


def test_row_is_late_once_the_usual_turnaround_no_longer_fits(start):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1)
    core.close(lease, at=0.2)
    core.replicas()
    core.arrive(2, slo_s=1.0)
    assert core.timer == pytest.approx(1.2 - 0.3)  # 0.2 s and twice a first deviation of 0.05 s


def test_late_rows_ride_along_while_little_waits_on_time(start):
    core = start()
    core.arrive(1, 10, slo_s=1.0)
    core.arrive(2, 20, slo_s=9.0)
    core.tick(1.0)
    assert requests_of(*core.replicas("a")) == [[2, 1]]


def test_late_rows_do_not_ride_along_while_much_waits_on_time(start):
    core = start(initial_cost_s=0.5, slo_s=0.1, max_size=1)
    core.arrive(1, 10, slo_s=1.0)
    core.arrive(2, 20, slo_s=9.0)
    core.tick(1.0)
    assert requests_of(*core.replicas("a")) == [[2]]


def test_late_batches_keep_to_one_bucket(start):
    profile = ((1, 10, 1.0), (2, 10, 2.0), (1, 500, 50.0), (2, 500, 100.0))
    core = start(
        profile=profile, slo_s=1e3, admission=AdmissionParameters(best_effort_capacity_s=1e3)
    )
    core.arrive(1, 500, slo_s=1.0)
    core.arrive(2, 10, slo_s=1.0)
    core.arrive(3, 10, slo_s=1.0)
    core.arrive(4, 500, slo_s=1.0)
    core.tick(1.0)
    sent = core.replicas("a") + core.drain()
    assert sorted(requests_of(*sent)) == [[1, 4], [2, 3]]


def test_late_row_that_comes_back_goes_to_the_late_ones(start):
    core = start()
    core.replicas("a")
    (lease,) = core.arrive(1, slo_s=1.0)
    core.arrive(2, 500, slo_s=9.0)
    core.close(lease, LeaseEnd.BUSY, at=2.0)
    assert core.dispatcher.snapshot(2.0).late_rows == 1
    assert requests_of(*core.tick(3.0), *core.drain()) == [[2], [1]]


def test_late_request_is_refused_at_its_deadline_where_settings_say_so(start):
    core = start(late="refuse")
    core.arrive(1, slo_s=1.0)
    assert core.tick(0.999) == []
    (evicted,) = core.tick(1.0)
    assert (evicted.request_id, evicted.reason) == (1, Reason.LATE)


def test_running_request_is_not_refused_for_lateness(start):
    core = start(late="refuse")
    core.replicas("a")
    (lease,) = core.arrive(1, slo_s=1.0)
    assert core.tick(1.0) == []
    (evicted,) = core.close(lease, LeaseEnd.BUSY, at=2.0)
    assert evicted.reason is Reason.LATE


@pytest.mark.parametrize(("late", "taken"), [("demote", True), ("refuse", False)])
def test_arrival_past_its_deadline_is_late_from_the_start(start, late, taken):
    core = start(late=late)
    actions = core.arrive(1, slo_s=0.0)
    assert core.dispatcher.snapshot(0.0).late_rows == taken
    assert [action.reason for action in actions] == ([] if taken else [Reason.LATE])


@pytest.mark.parametrize(("bound", "kept"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3)])
def test_late_newcomers_beyond_the_bound_are_evicted(start, bound, kept):
    core = start(max_late_rows=bound)
    for request_id in range(3):
        core.arrive(request_id, slo_s=1.0)
    evicted = core.tick(1.0)
    assert [action.request_id for action in evicted] == [*range(kept, 3)]
    assert all(action.reason is Reason.LATE for action in evicted)
    assert core.dispatcher.snapshot(1.0).late_rows == kept


# ---- bounds


@pytest.mark.parametrize(
    ("length", "reason"), [(0, None), (511, None), (512, None), (513, Reason.TOO_LONG)]
)
def test_rows_longer_than_the_last_bucket_are_rejected(start, length, reason):
    core = start()
    assert [action.reason for action in core.arrive(1, length)] == ([reason] if reason else [])


def test_one_row_too_long_rejects_its_request(start):
    core = start()
    assert core.arrive(1, 10, 513) == [Reject(1, Reason.TOO_LONG)]
    assert core.dispatcher.snapshot(0.0).waiting_rows == 0


@pytest.mark.parametrize(("rows", "taken"), [(1, True), (2, True), (3, True), (4, False)])
def test_request_larger_than_the_queue_is_rejected(start, rows, taken):
    core = start(max_queue_rows=3)
    reasons = [action.reason for action in core.arrive(1, *[10] * rows)]
    assert reasons == ([] if taken else [Reason.TOO_LARGE])


@pytest.mark.parametrize(("rows", "taken"), [(1, True), (2, False)])
def test_rows_over_the_bound_are_rejected(start, rows, taken):
    core = start(max_queue_rows=3)
    core.arrive(1, 10, 10)
    reasons = [action.reason for action in core.arrive(2, *[10] * rows)]
    assert reasons == ([] if taken else [Reason.QUEUE_FULL])


def test_leased_rows_do_not_count_against_the_queue(start):
    core = start(max_queue_rows=1)
    core.replicas("a")
    assert len(core.arrive(1)) == 1
    assert core.arrive(2) == []
    assert core.arrive(3)[0].reason is Reason.QUEUE_FULL


def test_full_queue_says_when_to_ask_again(start):
    core = start(max_queue_rows=4, max_size=1, initial_cost_s=0.5)
    for request_id in range(4):
        core.arrive(request_id, 10)
    assert core.arrive(8) == [Reject(8, Reason.QUEUE_FULL, 2.0)]


@pytest.mark.parametrize(("cost_s", "retry_s"), [(0.0, 0.05), (0.03, 0.05), (30.0, 30.0), (99, 60)])
def test_retry_time_is_bounded(start, cost_s, retry_s):
    core = start(max_queue_rows=1, max_size=1, initial_cost_s=cost_s)
    core.arrive(1)
    assert core.arrive(2)[0].retry_after_s == retry_s


@pytest.mark.parametrize(("timeout_s", "reasons"), [(0.0, [Reason.EXPIRED]), (0.001, [])])
def test_request_that_arrives_expired_is_rejected(start, timeout_s, reasons):
    core = start()
    actions = core.arrive(1, slo_s=0.0, timeout_s=timeout_s)
    assert [action.reason for action in actions] == reasons


# ---- the parts alone


def ticket_at(order, at):
    tracked = TrackedRequest(Request(order, (1,), 0.0, at, at), Flow("", 0), 0.0, at)
    tracked.rows = (Row(tracked, 0, 1, order, 1),)
    return tracked


def test_forgotten_timers_are_compacted():
    timers = Timers()
    tracked_requests = [ticket_at(order, float(order)) for order in range(1000)]
    for tracked in tracked_requests:
        timers.push(tracked.latest_start, tracked)
    for live in range(999, -1, -1):
        tracked_requests[live].open = 0
        timers.trim(live)
        assert len(timers.line) + len(timers.heap) <= 2 * live + 32
    assert not timers.line
    assert not timers.heap


def test_latest_start_leaves_half_of_the_budget():
    turnaround = Turnaround()
    turnaround.keep((32,), 0.0)
    turnaround.observe(32, 100.0)
    assert turnaround.latest_start(32, 1.0, 2.0) == 1.5
    assert turnaround.latest_start(32, 3.0, 2.0) == 2.0


def test_turnaround_of_an_edge_that_is_gone_is_not_kept():
    turnaround = Turnaround()
    turnaround.keep((32, 64), 0.0)
    turnaround.observe(32, 1.0)
    turnaround.observe(64, 1.0)
    turnaround.keep((64,), 0.0)
    turnaround.observe(32, 1.0)
    turnaround.keep((32, 64), 0.25)
    assert (turnaround.margin_s(32), turnaround.margin_s(64)) == (1.5, 1.5)


def test_new_edge_starts_with_what_the_next_longer_one_took():
    turnaround = Turnaround()
    turnaround.keep((32, 64), 0.0)
    turnaround.observe(64, 1.0)
    turnaround.keep((16, 48, 64, 96), 0.25)
    assert [turnaround.margin_s(edge) for edge in (16, 48, 64, 96)] == [1.5, 1.5, 1.5, 0.25]


def test_whose_deadline_has_passed_is_refused_where_no_idle_moment_is_to_come(start):
    room = AdmissionParameters(margin_s=0.0, best_effort_capacity_s=0.0)
    core = start(profile=((1, 32, 0.1), (2, 32, 0.2)), admission=room)
    core.replicas("a")
    core.arrive(1, 10, slo_s=50.0)
    core.arrive(2, 10, slo_s=1.0)
    assert core.tick(0.9) == []
    (refused,) = core.tick(1.0)
    assert (refused.request_id, refused.reason) == (2, Reason.LATE)


REQUEST = Request(1, (10,), arrival=0.0, deadline=1.0, expires=5.0)
DEMOTE = DispatcherSettings((64,), max_late_rows=2)
REFUSE = DispatcherSettings((64,), max_late_rows=2, late="refuse")


def a_ticket(*, late, queued=1):
    tracked = TrackedRequest(REQUEST, Flow("a", 0), 0.0, 0.75)
    tracked.queued, tracked.late = queued, late
    return tracked


def with_late_rows(count, tenant="a"):
    waiting = RequestQueue((64,), Flows(FairQueueing()))
    waiting.late_rows = count
    if count:
        share = TenantShare(tenant, 1.0)
        share.rows = share.late_rows = count
        waiting.shares.by_tenant[tenant], waiting.shares.weight = share, 1.0
    return waiting


def test_what_is_on_time_is_looked_at_when_it_turns_late():
    assert next_moment(a_ticket(late=False), 0.5) == 0.75


def test_what_is_late_is_looked_at_when_its_deadline_has_come():
    assert next_moment(a_ticket(late=True), 0.8) == 1.0


def test_what_runs_beyond_its_deadline_is_looked_at_when_it_expires():
    assert next_moment(a_ticket(late=True), 1.0) == 5.0


@pytest.mark.parametrize(("now", "over"), [(0.999, False), (1.0, True), (1.001, True)])
def test_refusing_settings_let_nothing_wait_from_its_deadline_on(now, over):
    assert is_over(REQUEST, REFUSE, now) is over
    assert not is_over(REQUEST, DEMOTE, now)


@pytest.mark.parametrize(("waiting", "rows", "place"), [(0, 2, True), (1, 1, True), (1, 2, False)])
def test_late_rows_have_places_up_to_their_bound(waiting, rows, place):
    assert has_place(rows, Flow("a", 0), with_late_rows(waiting), DEMOTE) is place


@pytest.mark.parametrize(("weight", "rows", "place"), [
    (1.0, 1, True), (1.0, 2, False), (1e9, 1, True), (0.5, 1, False),
])  # fmt: skip
def test_late_rows_of_another_tenant_leave_a_share_of_the_places(weight, rows, place):
    others = with_late_rows(2, tenant="b")
    assert has_place(rows, Flow("a", 0, weight), others, DEMOTE) is place


def test_one_that_turns_late_is_refused_when_no_place_is_left():
    assert is_refused(a_ticket(late=False), with_late_rows(2), DEMOTE, 0.8)
    assert not is_refused(a_ticket(late=False), with_late_rows(1), DEMOTE, 0.8)


def test_one_that_is_late_already_keeps_its_place():
    assert not is_refused(a_ticket(late=True), with_late_rows(2), DEMOTE, 0.8)


def test_one_that_only_runs_needs_no_place():
    assert not is_refused(a_ticket(late=False, queued=0), with_late_rows(2), DEMOTE, 0.8)
