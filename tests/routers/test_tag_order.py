"""Who is next by tag, against a plain search for the lowest."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from routers.flows import Flow, Mark, TagOrder


@dataclass(eq=False)
class Item:
    name: int
    flow: Flow = field(default_factory=lambda: Flow("", 0))
    rows: int = 0
    mark: Mark | None = None


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
    order, items = TagOrder(), [Item(number) for number in range(ITEMS)]
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
    order, items = TagOrder(), [Item(number, rows=1) for number in range(5)]
    for item in items:
        order.add(item)
    served = []
    while (item := order.first()) is not None:
        item.rows = 0
        served.append(item.name)
    assert served == [0, 1, 2, 3, 4]


def test_newcomer_with_the_same_tag_goes_behind_who_waited_for_it():
    order, (old, new) = TagOrder(), (Item(0, rows=1), Item(1, rows=1))
    order.add(old)
    old.flow.start = 1.0
    assert order.first() is old
    new.flow.start = 1.0
    order.add(new)
    assert order.first() is old


def test_tags_that_fall_and_rise_to_the_same_value_leave_no_second_entry():
    order, item = TagOrder(), Item(0, rows=1)
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
        item = Item(number, rows=1)
        order.add(item)
        item.rows = 0
    assert len(order.heap) <= 33


def test_cleared_order_takes_its_items_again():
    order, item = TagOrder(), Item(0, rows=1)
    order.add(item)
    item.rows = 0
    order.clear()
    assert order.first() is None
    item.rows = 1
    order.add(item)
    assert order.first() is item
