"""Each lease is due once, when it was last said to be."""

from __future__ import annotations

from math import inf
from typing import Any

from routers.state.lease_timers import LeaseTimers


class Held:
    """A lease, as far as timers know one."""

    def __init__(self, lease_id: int) -> None:
        self.lease_id, self.next_check_at = lease_id, inf


def lease(lease_id: int) -> Any:
    return Held(lease_id)


def test_the_earliest_is_due_first_and_each_once() -> None:
    timers, one, two = LeaseTimers(), lease(1), lease(2)
    timers.look_at(one, 2.0)
    timers.look_at(two, 1.0)
    assert (timers.next_at(), timers.due(0.5)) == (1.0, None)
    assert [timers.due(3.0), timers.due(3.0), timers.due(3.0)] == [two, one, None]
    assert timers.next_at() == inf


def test_only_the_last_time_that_was_asked_for_holds() -> None:
    timers, one = LeaseTimers(), lease(1)
    timers.look_at(one, 1.0)
    timers.look_at(one, 2.0)
    assert timers.due(1.5) is None
    timers.look_at(one, inf)
    assert (timers.due(9.0), timers.next_at()) == (None, inf)


def test_what_holds_no_more_is_dropped() -> None:
    timers = LeaseTimers()
    for n in range(200):
        timers.look_at(lease(n), 1.0)
        one = lease(n)
        timers.look_at(one, 5.0)
        timers.look_at(one, inf)
    timers.trim(200)
    assert len(timers) == 400
    timers.trim(0)
    assert len(timers) == 200
