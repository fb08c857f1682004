from __future__ import annotations

import pytest

from autoscaling.types import StartReading, State
from deployments.contract.scaling.messages import Observed
from deployments.control.scaling.start_orders import StartOrders

KEY = "model-a/model"
OWN = (("process", 2.0), ("staging", 1.0), ("warming", 3.0))
START = StartReading("a", "", State.STAGED, 6.0, OWN)


def orders(*targets: tuple[float, int, int]) -> StartOrders:
    """By time: what runs, and what is asked for."""
    made = StartOrders()
    for now, running, target in targets:
        made.observe({KEY: Observed(running, target)}, now)
    return made


def test_a_start_counts_from_the_order():
    whole = orders((0.0, 1, 1), (10.0, 1, 2)).whole(START, 18.0)
    assert whole is not None
    assert (whole.seconds, whole.began_in) == (8.0, State.STAGED)
    assert whole.phases == (
        ("placing", 2.0), ("process", 2.0), ("staging", 1.0), ("warming", 3.0),
    )  # fmt: skip


def test_a_process_that_had_waited_is_not_counted_before_the_order():
    whole = orders((0.0, 1, 1), (10.0, 1, 2)).whole(START, 15.0)
    assert whole is not None
    assert whole.phases[:2] == (("placing", 0.0), ("process", 1.0))
    assert whole.seconds == 5.0


def test_orders_and_starts_are_matched_first_to_first():
    made = orders((0.0, 1, 1), (10.0, 1, 2), (20.0, 1, 4))
    seconds = [s.seconds for s in (made.whole(START, 30.0) for _ in range(3)) if s]
    assert seconds == [20.0, 10.0, 10.0]
    assert made.whole(START, 30.0) is None


def test_an_order_that_is_taken_back_expects_no_start():
    made = orders((0.0, 1, 1), (10.0, 1, 3), (12.0, 1, 2))
    assert made.whole(START, 18.0) is not None
    assert made.whole(START, 18.0) is None


@pytest.mark.parametrize("first", [(0.0, 2, 2), (0.0, 0, 2)])
def test_what_ran_or_began_before_anybody_looked_was_not_seen_ordered(first):
    assert orders(first).whole(START, 5.0) is None


def test_a_model_that_came_since_was_ordered_when_it_came():
    made = StartOrders()
    made.observe({}, 0.0)
    made.observe({KEY: Observed(0, 1)}, 3.0)
    whole = made.whole(START, 13.0)
    assert whole is not None
    assert whole.seconds == 10.0


def test_an_order_that_came_to_nothing_is_forgotten():
    made = orders((0.0, 1, 1), (10.0, 1, 2), (5000.0, 1, 2))
    assert made.whole(START, 5001.0) is None


def test_what_is_ordered_begins_with_the_oldest_order_that_nothing_has_come_of():
    made = orders((0.0, 1, 1), (10.0, 1, 2), (20.0, 1, 3))
    assert made.begun_s("a", ["", "other"], 25.0) == 15.0
    made.whole(START, 26.0)
    assert made.begun_s("a", [""], 27.0) == 7.0
    made.observe({KEY: Observed(2, 2)}, 28.0)
    assert made.begun_s("a", [""], 29.0) == 0.0
    assert made.begun_s("b", [""], 29.0) == 0.0


def test_a_start_that_nobody_told_of_is_not_taken_for_the_next_one():
    made = orders((0.0, 1, 1), (10.0, 1, 2), (20.0, 2, 2))
    assert made.begun_s("a", [""], 21.0) == 11.0
    made.observe({KEY: Observed(2, 2)}, 26.0)
    assert made.begun_s("a", [""], 26.0) == 0.0
    made.observe({KEY: Observed(2, 3)}, 1000.0)
    whole = made.whole(START, 1008.0)
    assert whole is not None
    assert whole.seconds == 8.0


def test_a_start_that_is_told_while_others_start_leaves_them_their_orders():
    made = orders((0.0, 1, 1), (10.0, 1, 3), (20.0, 2, 3), (26.0, 2, 3))
    assert made.begun_s("a", [""], 30.0) == 20.0
    made.observe({KEY: Observed(3, 3)}, 31.0)
    assert made.whole(START, 31.0) is not None
    assert made.whole(START, 31.0) is None
