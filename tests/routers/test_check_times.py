"""Each is due once, when it was last said to be."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from routers.state.timers import CheckTimes, T


def due(times: CheckTimes[T], now: float) -> Iterator[tuple[T, float]]:
    while (found := times.due(now)) is not None:
        yield found


def test_the_earliest_is_due_first_and_each_once() -> None:
    times: CheckTimes[str] = CheckTimes()
    times.look_at("one", 2.0, 1)
    times.look_at("two", 1.0, 2)
    assert (times.next_at(), times.first(), list(due(times, 0.5))) == (1.0, "two", [])
    assert list(due(times, 3.0)) == [("two", 1.0), ("one", 2.0)]
    assert (list(due(times, 3.0)), times.next_at(), times.first()) == ([], inf, None)


def test_of_those_due_at_once_the_lowest_order_is_first() -> None:
    times: CheckTimes[str] = CheckTimes()
    for what, order in (("three", 3), ("one", 1), ("two", 2)):
        times.look_at(what, 1.0, order)
    assert [what for what, _ in due(times, 1.0)] == ["one", "two", "three"]


def test_without_an_order_the_one_that_was_asked_for_first_is_first() -> None:
    times: CheckTimes[str] = CheckTimes()
    for what in ("one", "three", "two"):
        times.look_at(what, 1.0)
    assert [what for what, _ in due(times, 1.0)] == ["one", "three", "two"]


def test_only_the_last_time_that_was_asked_for_holds() -> None:
    times: CheckTimes[str] = CheckTimes()
    times.look_at("one", 1.0, 1)
    times.look_at("one", 2.0, 1)
    assert (list(due(times, 1.5)), times.at("one")) == ([], 2.0)
    times.look_at("one", inf, 1)
    assert (list(due(times, 9.0)), times.next_at(), times.at("one")) == ([], inf, inf)


def test_a_time_asked_for_twice_is_due_once() -> None:
    times: CheckTimes[str] = CheckTimes()
    for at in (1.0, 2.0, 1.0):
        times.look_at("one", at, 1)
    assert list(due(times, 9.0)) == [("one", 1.0)]


def test_what_is_asked_for_while_one_looks_is_due_too() -> None:
    times: CheckTimes[str] = CheckTimes()
    times.look_at("one", 1.0, 1)
    seen = []
    for what, at in due(times, 3.0):
        seen.append((what, at))
        times.look_at("one", at + 1.0, 1)
    assert seen == [("one", 1.0), ("one", 2.0), ("one", 3.0)]
    assert times.next_at() == 4.0


def test_what_holds_no_more_is_dropped() -> None:
    times: CheckTimes[int] = CheckTimes()
    for n in range(200):
        times.look_at(n, 1.0, n)
        times.look_at(n, 5.0, n)
        if n >= 10:
            times.drop(n)
    assert len(times) <= 2 * 10 + 32 + 1
    assert [what for what, _ in due(times, 9.0)] == list(range(10))
