"""How long did a replica take from its order until it served? Serve's order, the replica's phases.

A replica knows its phases only from the start of its process on; a process that had waited for it
gives no useful beginning. When it was ordered shows in the moment when Serve's target rose. Orders
and starts are matched first to first, by model and group.

Two kinds of starts are left out, because they do not tell how soon more replicas can be had. One is
a start that nobody was seen to order: it replaces a dead replica, or brings a new version. The
other is a start of which the replica has not told although it runs: its order is dropped, or the
next start would be matched with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from autoscaling.types import StartReading
from deployments.contract.app_names import directory_key
from deployments.contract.scaling.messages import Observed

PLACING = "placing"
PROCESS = "process"
_LONGEST_S = 3600.0  # an older order is dropped
_TELLS_S = 5.0  # within which a replica has told of its start when Serve says that it runs


class StartOrders:
    """By deployment, the moments when Serve's target rose, for replicas that are not there yet."""

    def __init__(self) -> None:
        self._observed: dict[str, Observed] = {}
        self._orders: dict[str, deque[float]] = {}
        self._untold: dict[str, float] = {}  # since when a deployment has more orders than starts
        self._began = False

    def observe(self, observed: Mapping[str, Observed], now: float) -> None:
        """Take in the numbers of all deployments that there are."""
        for key, each in observed.items():
            orders = self._orders.setdefault(key, deque())
            if key in self._observed:
                rise = each.target - self._observed[key].target
            else:  # new since: the replicas that it starts with were ordered just now
                rise = each.target - each.running if self._began else 0
            orders.extend([now] * rise)
            for _ in range(min(len(orders), -rise)):
                orders.pop()
            while orders and now - orders[0] > _LONGEST_S:
                orders.popleft()
        self._drop_untold(observed, now)
        self._observed, self._began = dict(observed), True
        self._orders = {key: self._orders[key] for key in observed}

    def _drop_untold(self, observed: Mapping[str, Observed], now: float) -> None:
        """Drop orders of replicas that run and have not told of their start for `_TELLS_S`."""
        more = {
            key: len(self._orders[key]) - max(0, each.target - each.running)
            for key, each in observed.items()
        }
        self._untold = {k: self._untold.get(k, now) for k, surplus in more.items() if surplus > 0}
        for key in [k for k, since in self._untold.items() if now - since >= _TELLS_S]:
            for _ in range(more[key]):
                self._orders[key].popleft()
            del self._untold[key]

    def begun_s(self, model: str, groups: Iterable[str], now: float) -> float:
        """How many seconds ago the next replica to come was ordered; 0.0 if none is ordered."""
        waiting = [self._orders.get(directory_key(model, group)) for group in groups]
        return max([now - orders[0] for orders in waiting if orders], default=0.0)

    def whole(self, start: StartReading, now: float) -> StartReading | None:
        """The start timed from its order on. `start` is as the replica told it when it was ready,
        timed from its process on. None if nobody was seen to order it."""
        orders = self._orders.get(directory_key(start.model, start.group))
        if not orders:
            return None
        seconds = now - orders.popleft()
        own = tuple((name, spent) for name, spent in start.phases if name != PROCESS)
        before_s = max(0.0, seconds - sum(spent for _, spent in own))
        process_s = min(before_s, dict(start.phases).get(PROCESS, 0.0))
        phases = ((PLACING, before_s - process_s), (PROCESS, process_s), *own)
        return replace(start, seconds=seconds, phases=phases)
