"""Accounts of flows, and the order by their tags."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routers.api.requests import Report
from routers.policies.order import FairQueueing
from routers.state.flows import Charge, Flow, Flows
from routers.state.lanes import FlowQueue, Lane
from routers.state.tag_order import TagOrder


def waits(flows: Flows, flow: Flow, now: float = 0.0) -> Flow:
    """The flow gets its first row, on time."""
    flows.enter(flow, now)
    flow.rows += 1
    flows.count(flow)
    return flow


def opened(flows: Flows, *tenants: str, weight: float = 1.0, priority: int = 0) -> list[Flow]:
    return [waits(flows, flows.of(each, priority, weight)) for each in tenants]


def charged(tenant: str) -> Charge:
    """For one second of work."""
    return Charge((0, 0, 0.0), 1.0, ((0, tenant, 1.0),))


def leaves(flows: Flows, flow: Flow) -> None:
    flow.rows -= 1
    flows.count(flow)


# ---- charging


@pytest.mark.parametrize(("weight", "start"), [(0.5, 4.0), (1.0, 2.0), (4.0, 0.5)])
def test_tag_grows_by_cost_over_weight(weight, start):
    flow, flows = Flow("a", 0, weight), Flows(FairQueueing())
    flows.charge(flow, 2.0)
    assert flow.start == start


def test_what_was_charged_too_much_is_taken_off_the_next_charges_and_no_tag_falls():
    flow, flows = Flow("a", 0, 2.0), Flows(FairQueueing())
    tags = []
    for seconds in (4.0, -3.0, 2.0, 2.0):
        flows.charge(flow, seconds)
        tags.append((flow.start, flow.credit_s))
    assert tags == [(2.0, 0.0), (2.0, 3.0), (2.0, 1.0), (2.5, 0.0)]


@pytest.mark.parametrize(
    ("service_s", "start", "credit"), [(0.5, 1.0, 0.5), (1.0, 1.0, 0), (3, 3, 0)]
)
def test_measured_seconds_replace_predicted_ones(service_s, start, credit):
    flows = Flows(FairQueueing())
    (flow,) = opened(flows, "a")
    flows.charge(flow, 1.0)
    flows.settle(charged("a"), ((0, "a", service_s),))
    assert (flow.start, flow.credit_s, flow.served_s) == (start, credit, service_s)


def test_refund_restores_the_tag_and_names_the_flow():
    flows = Flows(FairQueueing())
    (flow,) = opened(flows, "a")
    flows.charge(flow, 1.0)
    flows.refund([(0, "a", 1.0)], epoch=0)
    assert (flow.start, flow.served_s, flows.lowered) == (0.0, 0.0, [flow])


def test_refund_after_credit_was_used_leaves_the_account_as_it_was():
    flow = Flow("a", 0, 2.0, start=5.0, credit_s=1.0)
    flows = Flows(FairQueueing())
    flows.by_key[flow.key] = flow
    flows.charge(flow, 3.0)
    flows.refund([(0, "a", 3.0)], epoch=0)
    assert flow.start - flow.credit_s / flow.weight == 5.0 - 1.0 / 2.0


def test_settling_for_a_forgotten_flow_is_no_matter():
    flows = Flows(FairQueueing())
    flows.settle(charged("gone"), ((0, "gone", 2.0),))
    flows.refund([(0, "gone", 1.0)], epoch=0)
    assert flows.by_key == {}
    assert flows.lowered == []


# ---- coming and going


def test_flow_that_slept_gets_no_credit():
    flows = Flows(FairQueueing())
    busy, slept = opened(flows, "busy", "slept")
    leaves(flows, slept)
    for _ in range(100):
        start = busy.start
        flows.charge(busy, 1.0)
        flows.leads(busy, start, 1.0, 1.0)
    waits(flows, slept)
    assert busy.start - 2.0 <= slept.start <= busy.start


def test_flow_that_slept_keeps_its_debt():
    flows = Flows(FairQueueing())
    (flow,) = opened(flows, "a")
    flows.charge(flow, 7.0)
    leaves(flows, flow)
    waits(flows, flow)
    assert flow.start == 7.0


def test_credit_is_no_way_to_come_back_below_the_virtual_time():
    flows = Flows(FairQueueing())
    busy, slept = opened(flows, "busy", "slept", weight=2.0)
    flows.leads(busy, 5.0, 1.0, 2.0)
    for start, credit_s in ((4.0, 9.0), (5.0, 9.0), (6.0, 9.0), (6.0, 1.0)):
        slept.start, slept.credit_s = start, credit_s
        flows.enter(slept, 0.0)
        assert slept.start - slept.credit_s / slept.weight >= 5.0
    assert (slept.start, slept.credit_s) == (6.0, 1.0)


def test_priorities_have_virtual_times_of_their_own():
    flows = Flows(FairQueueing())
    urgent, _ = flows.of("a", 0, 1.0), flows.of("a", 2, 1.0)
    flows.leads(urgent, 9.0, 1.0, 1.0)
    assert flows.of("b", 0, 1.0).start == 9.0
    assert flows.of("b", 2, 1.0).start == 0.0


def test_last_weight_given_is_the_flows_weight():
    flows = Flows(FairQueueing())
    (flow,) = opened(flows, "a", weight=1.0)
    assert flows.of("a", 0, 3.0) is flow
    assert (flow.weight, flows.weights) == (3.0, [3.0])
    leaves(flows, flow)
    assert flows.weights == [0.0]


# ---- virtual time


def test_virtual_time_is_at_least_the_leading_tag():
    flows = Flows(FairQueueing())
    a, _ = opened(flows, "a", "b")
    flows.leads(a, 3.0, 1.0, 2.0)
    assert flows.virtual == [3.0]
    flows.leads(a, 1.0, 1.0, 2.0)
    assert flows.virtual == [3.0]


def test_virtual_time_moves_though_each_row_is_another_flows():
    """Four of them wait at any time, so each has a quarter of what is served."""
    flows = Flows(FairQueueing())
    for number in range(100):
        flow = waits(flows, flows.of(f"t{number}", 0, 1.0))
        start = flow.start
        flows.charge(flow, 1.0)
        flows.leads(flow, start, 1.0, 4.0)
        leaves(flows, flow)
    assert flows.virtual[0] == pytest.approx(99 / 4)


def test_virtual_time_is_at_most_a_batch_above_the_lowest_tag():
    flows = Flows(FairQueueing())
    flow, other = opened(flows, "a", "b", weight=2.0)
    for _ in range(10):
        flows.leads(other, 1.0, 8.0, 0.0)
    assert flows.virtual == [1.0 + 8.0 / 2.0]
    assert flow.start == 0.0


def test_newcomer_goes_before_who_was_just_served():
    flows = Flows(FairQueueing())
    (aggressor,) = opened(flows, "aggressor")
    for _ in range(5):
        start = aggressor.start
        flows.charge(aggressor, 1.0)
        flows.leads(aggressor, start, 1.0, 1.0)
    (newcomer,) = opened(flows, "newcomer")
    assert newcomer.start < aggressor.start


# ---- other gateways


def test_work_done_elsewhere_is_charged_here():
    flows = Flows(FairQueueing())
    (flow,) = opened(flows, "a", weight=2.0)
    flows.learn(Report(served=((0, "a", 3.0), (0, "unknown", 1.0))), 0.0)
    assert (flow.start, flow.served_s) == (1.5, 0.0)


def test_virtual_time_of_others_lifts_who_comes_and_never_falls():
    flows = Flows(FairQueueing())
    flows.of("a", 1, 1.0)
    flows.learn(Report(virtual_time=(4.0, 6.0, 8.0)), 0.0)
    flows.learn(Report(virtual_time=(3.0,)), 0.0)
    assert flows.virtual == [4.0, 6.0]


def test_who_came_while_nothing_was_heard_is_lifted_once_something_is():
    flows = Flows(FairQueueing())
    flows.learn(Report(virtual_time=(1.0,)), 0.0)
    blind = waits(flows, flows.of("blind", 0, 1.0), 2.0)
    flows.learn(Report(virtual_time=(9.0,)), 2.5)
    assert blind.start == 9.0
    seeing = waits(flows, flows.of("seeing", 0, 1.0), 2.6)
    flows.learn(Report(virtual_time=(20.0,)), 2.7)
    assert seeing.start == 9.0


def test_flow_that_waits_elsewhere_claims_its_share_until_nobody_says_so():
    flows = Flows(FairQueueing())
    flow = flows.of("a", 0, 3.0)
    flows.learn(Report(waiting=((0, "a", 0.5), (0, "unknown", 1.0))), 0.0)
    assert (flow.peer_demand_s, flows.weights) == (0.5, [3.0])
    flows.learn(Report(), 0.2)
    assert (flow.peer_demand_s, flows.weights) == (0.5, [3.0])
    flows.learn(Report(waiting=((0, "a", 0.4),)), 0.4)
    flows.learn(Report(), 0.6)
    assert flow.peer_demand_s == 0.4
    flows.learn(Report(), 0.7)
    assert (flow.peer_demand_s, flows.weights) == (0.0, [0.0])


def test_what_was_heard_long_ago_does_not_count_for_newcomers():
    flows = Flows(FairQueueing())
    flow = flows.of("a", 0, 1.0)
    flows.learn(Report(waiting=((0, "a", 0.5),)), 0.0)
    flows.enter(flow, 60.0)
    assert flow.peer_demand_s == 0.0


@pytest.mark.parametrize(
    "report",
    [Report(served=((0, "a", 1.0),)), Report(waiting=((0, "a", 1.0),)), Report(inflight=2, held=1)],
)
def test_gateway_is_alone_until_it_hears_of_another_and_after_some_silence(report):
    flows = Flows(FairQueueing())
    flows.learn(Report(inflight=1, held=1), 0.0)
    assert flows.alone
    flows.learn(report, 1.0)
    assert not flows.alone
    flows.learn(Report(), 10.9)
    assert not flows.alone
    flows.learn(Report(), 11.1)
    assert flows.alone


# ---- memory


def test_accounts_of_idle_flows_are_dropped_but_not_the_largest_debts():
    flows = Flows(FairQueueing())
    opened(flows, "busy")
    for number in range(5000):
        (flow,) = opened(flows, f"t{number}")
        flows.charge(flow, 100.0 if number == 7 else 0.001)
        leaves(flows, flow)
    assert len(flows.by_key) < 600
    assert flows.of("t7", 0, 1.0).start == 100.0
    assert flows.by_key[0, "busy"].rows == 1


def test_flow_with_running_or_claimed_work_is_not_dropped():
    flows = Flows(FairQueueing())
    running, elsewhere = flows.of("running", 0, 1.0), flows.of("elsewhere", 0, 1.0)
    running.live = 1
    flows.learn(Report(waiting=((0, "elsewhere", 1.0),)), 0.0)
    for number in range(1000):
        flows.of(f"t{number}", 0, 1.0)
    assert flows.of("running", 0, 1.0) is running
    assert flows.of("elsewhere", 0, 1.0) is elsewhere


def test_many_live_flows_are_not_looked_at_for_each_newcomer():
    flows = Flows(FairQueueing())
    looked = 0

    class Counted(dict):
        def values(self):
            nonlocal looked
            looked += len(self)
            return super().values()

    flows.by_key = Counted()
    for number in range(4000):
        opened(flows, f"t{number}")
    assert looked < 3 * 4000


LANE = Lane(late=False, priority=0)


def item_of(name, rows=0):
    item = FlowQueue(LANE, Flow(str(name), 0))
    item.rows = rows
    return item


ITEMS = 6
MOVES = st.one_of(
    st.tuples(st.just("push"), st.integers(0, ITEMS - 1), st.just(0.0)),
    st.tuples(st.just("pop"), st.integers(0, ITEMS - 1), st.just(0.0)),
    st.tuples(st.just("rise"), st.integers(0, ITEMS - 1), st.sampled_from((0.5, 1.0, 2.0))),
    st.tuples(st.just("fall"), st.integers(0, ITEMS - 1), st.sampled_from((0.5, 1.0, 2.0))),
    st.tuples(st.just("serve"), st.just(0), st.sampled_from((0.5, 1.0))),
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(MOVES, max_size=60))
def test_first_is_the_lowest_tag_of_those_with_rows(moves):
    order, items = TagOrder(), [item_of(number) for number in range(ITEMS)]
    for move, number, by in moves:
        item = items[number]
        if move == "push":
            item.rows += 1
            order.add(item)
        elif move == "pop":
            item.rows = max(0, item.rows - 1)
        elif move == "rise":
            item.flow.start += by
        elif move == "fall":
            item.flow.start -= by
            if item.rows:
                order.add(item)
        elif (first := order.first()) is not None:
            first.rows -= 1
            first.flow.start += by
        waiting = [each.flow.start for each in items if each.rows]
        first = order.first()
        assert (first.flow.start if first else None) == min(waiting, default=None)
        assert len(order.heap) <= 2 * ITEMS + 33


def test_equal_tags_go_in_the_order_in_which_they_came():
    order, items = TagOrder(), [item_of(number, rows=1) for number in range(5)]
    for item in items:
        order.add(item)
    served = []
    while (item := order.first()) is not None:
        item.rows = 0
        served.append(int(item.flow.tenant))
    assert served == [0, 1, 2, 3, 4]


def test_newcomer_with_the_same_tag_goes_behind_who_waited_for_it():
    order, (old, new) = TagOrder(), (item_of(0, rows=1), item_of(1, rows=1))
    order.add(old)
    old.flow.start = 1.0
    assert order.first() is old
    new.flow.start = 1.0
    order.add(new)
    assert order.first() is old


def test_tags_that_fall_and_rise_to_the_same_value_leave_no_second_entry():
    order, item = TagOrder(), item_of(0, rows=1)
    order.add(item)
    for _ in range(1000):
        item.flow.start += 1.0
        assert order.first() is item
        item.flow.start -= 1.0
        order.add(item)
    assert len(order.heap) <= 34
    item.rows = 0
    assert order.first() is None


def test_items_that_came_and_went_unserved_are_forgotten():
    order = TagOrder()
    for number in range(10_000):
        item = item_of(number, rows=1)
        order.add(item)
        item.rows = 0
    assert len(order.heap) <= 33


def test_cleared_order_takes_its_items_again():
    order, item = TagOrder(), item_of(0, rows=1)
    order.add(item)
    item.rows = 0
    order.clear()
    assert order.first() is None
    item.rows = 1
    order.add(item)
    assert order.first() is item
