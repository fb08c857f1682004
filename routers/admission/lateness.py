"""May a request that is late go on waiting, and when must it be looked at again?

A request is late once it can no longer be expected to meet its deadline. It may then wait until
that; from there on with `late="refuse"` no longer, with `late="demote"` until it expires, where an
idle moment is to come that could serve it; and always as long as the late rows that wait leave it a
place. When it turns late, and where it goes then, is not decided
here.
"""

from __future__ import annotations

from routers.request_queue import RequestQueue
from routers.settings import DispatcherSettings
from routers.tickets import Ticket
from routers.types import Request


def next_moment(ticket: Ticket, now: float) -> float:
    """When time changes what may become of it: it turns late, may wait no longer, expires."""
    if not ticket.late:
        return ticket.latest_start
    request = ticket.request
    return request.deadline if now < request.deadline else request.expires


def is_over(request: Request, settings: DispatcherSettings, now: float) -> bool:
    """Whether its deadline has passed and settings let nothing wait beyond that."""
    return settings.late == "refuse" and request.deadline <= now


def has_place(rows: int, waiting: RequestQueue, settings: DispatcherSettings) -> bool:
    """Whether so many rows more may wait late."""
    return waiting.late_rows + rows <= settings.max_late_rows


def is_refused(
    ticket: Ticket, waiting: RequestQueue, settings: DispatcherSettings, now: float
) -> bool:
    """Whether a late request may not stay, or one that becomes late finds no place there."""
    newcomers = 0 if ticket.late else ticket.queued
    return is_over(ticket.request, settings, now) or (
        newcomers > 0 and not has_place(newcomers, waiting, settings)
    )
