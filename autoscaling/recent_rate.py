"""How much work a second is a model asked for just now, where seconds matter?

The rate of the longest window that the shorter ones do not contradict. Each window bounds it: by
what came in it, more or less what chance adds where requests come independently (variance of a
window's work: its mean times E[c²]/E[c]). Steady demand is thus read over a minute, and demand that
has begun or ended over the few seconds that show it. Two sigmas, so one look in forty at each
window is off by a little more.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt

_SIGMAS = 2.0
WINDOWS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def recent_rate(rates: Iterable[tuple[float, float]], request_work_s: float) -> float:
    """Work a second. rates: offered by window, in seconds; request_work_s: E[c²]/E[c] of requests.
    0.0 where nothing is known."""
    found = 0.0
    for window_s, rate in sorted(rates, reverse=True):
        low, high = _bounds(rate * window_s, request_work_s)
        found = min(max(found, low / window_s), high / window_s) if found else rate
    return found


def _bounds(work_s: float, request_work_s: float) -> tuple[float, float]:
    """Of the mean of a window in which so much came (Wilson's, for Poisson counts)."""
    half_s = 0.5 * _SIGMAS * _SIGMAS * request_work_s
    spread_s = _SIGMAS * sqrt(work_s * request_work_s + 0.5 * half_s * request_work_s)
    return max(0.0, work_s + half_s - spread_s), work_s + half_s + spread_s
