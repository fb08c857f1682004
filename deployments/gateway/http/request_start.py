"""The time a request spent on its way to the gateway, by the proxy's `x-request-start` header.

nginx writes `t=1700000000.123` (seconds), HAProxy microseconds, other load balancers milliseconds
or nanoseconds; the magnitude tells which, for any date between 1973 and 5138. What makes no sense
(no number, the future, more than an hour ago) is no measurement: it is left out, never guessed.
Both clocks are wall clocks of different machines, so a wait is as right as they agree.
"""

from __future__ import annotations

_LARGEST_S = 1e11  # the year 5138; the same number of milliseconds is 1973
_LONGEST_HEADER = 32
_LONGEST_WAIT_S = 3600.0


def sent_at_s(value: bytes) -> float | None:
    """Seconds since the epoch, or None if the header says nothing sensible."""
    if len(value) > _LONGEST_HEADER:
        return None
    try:
        number = float(value.strip().removeprefix(b"t="))
    except ValueError:
        return None
    for scale in (1.0, 1e3, 1e6, 1e9):
        if 1e8 <= number / scale < _LARGEST_S:
            return number / scale
    return None


def upstream_wait_s(value: bytes | None, now_s: float) -> float | None:
    """Seconds between the proxy's stamp and `now_s` (wall clock); None when not known."""
    sent = sent_at_s(value) if value is not None else None
    if sent is None or not 0.0 <= now_s - sent <= _LONGEST_WAIT_S:
        return None
    return now_s - sent
