"""A client that reads the clock when it should: before whatever it measures, where it may.

On a machine whose processors a model keeps busy, a client of ordinary priority reads late what came
in time, and that is charged to the server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def punctual() -> Iterator[bool]:
    """Real-time priority for this thread until the end, not for processes that it starts; whether
    it was granted."""
    try:
        policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
        first = os.sched_param(os.sched_get_priority_min(os.SCHED_FIFO))
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, first)
    except (AttributeError, PermissionError):
        yield False
        return
    try:
        yield True
    finally:
        # Without the flag it would be refused to who may not set any priority.
        os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, parameters)
