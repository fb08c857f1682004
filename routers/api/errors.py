"""What can go wrong in the core: only what its caller did wrong.

Ordinary outcomes (a full queue, a lost replica) are actions with a `Reason`, never exceptions.
Each of these is raised before any state has changed.
"""

from __future__ import annotations


class RouterFault(Exception):
    """Base of all that the core raises on purpose."""


class BadSettings(RouterFault):
    """Settings that contradict themselves; the message names the field and what would be right."""


class BadRequestEvent(RouterFault):
    """A request without rows, or with the id of one that is still live."""
