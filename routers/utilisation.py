"""How busy are the replicas just now?

An exponentially weighted mean, over about a second, of the share of running replicas that hold work
of this gateway (a stream replica counts by how full it is), plus the seconds that they are said to
have served for other gateways. Work that waits here behind another gateway's counts twice, so with
several gateways the figure errs on the busy side. It decides nothing.
"""

from __future__ import annotations

from math import exp

_WINDOW_S = 1.0


class Utilisation:
    """`share`: 0..1. Time goes by `advance`, which must come before the share has changed."""

    def __init__(self) -> None:
        self._own = 0.0
        self._foreign = 0.0
        self._at: float | None = None

    @property
    def share(self) -> float:
        return min(1.0, self._own + self._foreign)

    def advance(self, busy: float, now: float) -> None:
        """`busy` has been the share since the last call."""
        if self._at is not None and now > self._at:
            kept = exp((self._at - now) / _WINDOW_S)
            self._own = busy + kept * (self._own - busy)
            self._foreign *= kept
        self._at = now

    def heard(self, served_s: float, replicas: int) -> None:
        """Other gateways were served for so long at one of so many replicas."""
        self._foreign += served_s / (_WINDOW_S * max(1, replicas))
