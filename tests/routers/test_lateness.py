"""A late request waits until its deadline or its timeout, as settings say, if there is a place."""

import pytest

from routers.deadlines import has_place, is_over, is_refused, next_moment
from routers.flows import Flow, Flows
from routers.lanes import TrackedRequest
from routers.request_queue import RequestQueue
from routers.settings import DispatcherSettings
from routers.types import Request

REQUEST = Request(1, (10,), arrival=0.0, deadline=1.0, expires=5.0)
DEMOTE = DispatcherSettings((64,), max_late_rows=2)
REFUSE = DispatcherSettings((64,), max_late_rows=2, late="refuse")


def a_ticket(*, late, queued=1):
    return TrackedRequest(REQUEST, Flow("a", 0), 0.0, 0.75, open=1, queued=queued, late=late)


def with_late_rows(count):
    waiting = RequestQueue((64,), Flows())
    waiting.late_rows = count
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
    assert has_place(rows, with_late_rows(waiting), DEMOTE) is place


def test_one_that_turns_late_is_refused_when_no_place_is_left():
    assert is_refused(a_ticket(late=False), with_late_rows(2), DEMOTE, 0.8)
    assert not is_refused(a_ticket(late=False), with_late_rows(1), DEMOTE, 0.8)


def test_one_that_is_late_already_keeps_its_place():
    assert not is_refused(a_ticket(late=True), with_late_rows(2), DEMOTE, 0.8)


def test_one_that_only_runs_needs_no_place():
    assert not is_refused(a_ticket(late=False, queued=0), with_late_rows(2), DEMOTE, 0.8)
