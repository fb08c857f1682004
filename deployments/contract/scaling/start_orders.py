"""How long a replica took from the order until it served: the order is Serve's, the phases its own.

A replica knows its phases from the start of its process on, and of a process that waited for it no
good beginning; when it was ordered shows in when Serve's target rose. Orders and starts are matched
first to first, by model and group. A start that nobody was seen to order (one that replaces a dead
replica, or brings a new version) says nothing of how soon more can be had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from autoscaling.types import StartReading
from deployments.contract.app_names import directory_key
from deployments.contract.scaling.messages import Observed

PLACING = "placing"
PROCESS = "process"
_LONGEST_S = 3600.0


class StartOrders:
    """By deployment, the moments when Serve's target rose and no replica has come yet."""

    def __init__(self) -> None:
        self._observed: dict[str, Observed] = {}
        self._orders: dict[str, deque[float]] = {}
        self._began = False

    def observe(self, observed: Mapping[str, Observed], now: float) -> None:
        """All deployments there are, as Serve's controller says."""
        for key, each in observed.items():
            orders = self._orders.setdefault(key, deque())
            rise = self._rise(key, each)
            orders.extend([now] * rise)
            for _ in range(min(len(orders), -rise)):
                orders.pop()
            while orders and now - orders[0] > _LONGEST_S:
                orders.popleft()
        self._observed, self._began = dict(observed), True
        self._orders = {key: self._orders[key] for key in observed}

    def _rise(self, key: str, each: Observed) -> int:
        if key in self._observed:
            return each.target - self._observed[key].target
        # One that has come since: what it starts with was ordered just now.
        return each.target - each.running if self._began else 0

    def whole(self, start: StartReading, now: float) -> StartReading | None:
        """`start` as the replica told it when it was ready, from its process on; as it was from the
        order on. None where nobody was seen to order it."""
        orders = self._orders.get(directory_key(start.model, start.group))
        if not orders:
            return None
        seconds = now - orders.popleft()
        own = tuple((name, spent) for name, spent in start.phases if name != PROCESS)
        before_s = max(0.0, seconds - sum(spent for _, spent in own))
        process_s = min(before_s, dict(start.phases).get(PROCESS, 0.0))
        phases = ((PLACING, before_s - process_s), (PROCESS, process_s), *own)
        return replace(start, seconds=seconds, phases=phases)
