"""How long a replica took from the order until it served: the order is Serve's, the phases its own.

A replica knows its phases from the start of its process on; that it was ordered earlier, and waited
for a place and for a process, shows in when Serve's target rose. Orders and starts are matched
first to first, by model and group. A start that nobody ordered (one that replaces a dead replica,
or a new version) counts with the phases that it tells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from autoscaling.types import StartReading
from deployments.contract.app_names import directory_key
from deployments.contract.scaling.messages import Observed

PLACED = "placed"
_LONGEST_S = 3600.0


class StartOrders:
    """By deployment, the moments when Serve's target rose and no replica has come yet."""

    def __init__(self) -> None:
        self._targets: dict[str, int] = {}
        self._orders: dict[str, deque[float]] = {}

    def observe(self, observed: Mapping[str, Observed], now: float) -> None:
        for key, each in observed.items():
            orders = self._orders.setdefault(key, deque())
            rise = each.target - self._targets.get(key, each.target)
            orders.extend([now] * rise)
            for _ in range(min(len(orders), -rise)):
                orders.pop()
            while orders and now - orders[0] > _LONGEST_S:
                orders.popleft()
        self._targets = {key: each.target for key, each in observed.items()}
        self._orders = {key: self._orders[key] for key in observed}

    def whole(self, start: StartReading, now: float) -> StartReading:
        """`start` as the replica told it, from the beginning of its process; as it was from the
        order on."""
        orders = self._orders.get(directory_key(start.model, start.group))
        if not orders:
            return start
        seconds = max(start.seconds, now - orders.popleft())
        phases = ((PLACED, seconds - start.seconds), *start.phases)
        return replace(start, seconds=seconds, phases=phases)
