"""Which exceptions does the core raise? Only for mistakes of its caller.

Expected outcomes (a full queue, a lost replica) are actions with a `Reason`, never exceptions.
Every exception here is raised before any state has changed.
"""

from __future__ import annotations


class RouterFault(Exception):
    """Base class of the core's own exceptions."""


class BadSettings(RouterFault):
    """Settings that contradict themselves; the message names the field and what would be right."""


class BadRequestEvent(RouterFault):
    """A request without rows, with the id of a request that is still live, or one that generates
    and has several rows."""
