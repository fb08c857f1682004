"""What does a new request find before it?

Three things: the on-time work of its flow that goes before it by the order in force, the on-time
work in more urgent priorities, and the flows that it shares the replicas with. Work that waits for
the flow at other gateways counts, as far as reports tell, but at most as much as waits here:
gateways take turns with a flow, and a request at the gateway with the least of the flow's work
would otherwise always be called late. Unit: predicted device seconds. O(1) in what waits.

Where groups of replicas take different lengths, a request finds no replica if none runs that takes
its longest row. Work that only a part of the replicas may do counts as much more as that part is
smaller than all of them, so that it may be divided by the capacity of all. Urgent work that is too
long for the replicas that take the request does not stand before it there. Late work counts alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from routers.api.policies import ARRIVALS, DEADLINES, SHARES, Ranking
from routers.policies.admission.types import LateWork, Newcomer
from routers.state.lanes import Lane
from routers.state.replicas import ReplicaSet
from routers.state.request_queue import RequestQueue
from routers.state.rows import TrackedRequest


class QueueAhead:
    """Makes `Newcomer` records. `capacity_in_s`: while no replica runs, or none that takes some
    length, seconds until one is expected, as last told; 0.0: not known."""

    def __init__(
        self, waiting: RequestQueue, replicas: ReplicaSet[Any], *, by_room: bool = False
    ) -> None:
        """`by_room`: replicas take requests one by one, as their room allows."""
        self._waiting = waiting
        self._flows = waiting.flows
        self._replicas = replicas
        self._by_room = by_room
        self.capacity_in_s = 0.0

    def found_by(self, tracked: TrackedRequest, now: float) -> Newcomer:
        """The request with what it finds; changes nothing."""
        flow, waiting = tracked.flow, self._waiting
        edge = tracked.forecast_edge
        slack_s, longest = tracked.latest_start - now, self._longest(tracked)
        capacity = self._capacity(longest)
        if slack_s <= 0.0 or not capacity:
            return Newcomer(tracked, waiting, edge, slack_s, capacity, self.capacity_in_s)
        priority, ranking, before_s = flow.priority, self._flows.order.ranking, 0.0
        shares = ranking is SHARES
        is_behind = flow.rows > 0 if shares else self._has_waiting(priority)
        if is_behind or (self._by_room and not self._replicas.has_ready):
            # A request without room waits even if its flow has nothing else in the queue.
            before_s = self._before_s(tracked, ranking, longest)
        urgent_s = 0.0
        if priority:
            lanes = waiting.on_time[:priority]
            urgent_s = waiting.urgent_s(priority) if not longest else self._sum(lanes, longest)
        competing_weight = self._flows.weights[priority] if shares else flow.weight
        newcomer = Newcomer(tracked, waiting, edge, slack_s, capacity)
        return newcomer.finds(before_s, urgent_s, competing_weight)

    def late_work(self, tracked: TrackedRequest, left_s: float, *, is_new: bool) -> LateWork:
        """The late work that there would be with this request. `left_s`: until it expires."""
        waiting, longest = self._waiting, self._longest(tracked)
        own_s = 0.0 if tracked.late and not is_new else tracked.cost_s
        if longest:
            work_s = self._sum(waiting.late, longest) + own_s * self._counted(longest)(longest)
        else:
            work_s = waiting.late_s + own_s
        return LateWork(work_s, left_s, self._capacity(longest), is_new)

    def _longest(self, tracked: TrackedRequest) -> int:
        """The edge of its longest row; 0: all replicas take all lengths."""
        if not self._replicas.groups.bounds:
            return 0
        waiting = self._waiting
        return waiting.edges[waiting.bucket_of(max(tracked.request.lengths))]

    def _capacity(self, longest: int) -> float:
        """Of all running replicas; 0.0 where none takes rows of this edge."""
        groups = self._replicas.groups
        return groups.capacity if not longest or groups.takes(longest) else 0.0

    def _has_waiting(self, priority: int) -> bool:
        lanes = self._waiting.on_time
        return priority < len(lanes) and lanes[priority].rows > 0

    def _before_s(self, tracked: TrackedRequest, ranking: Ranking, longest: int) -> float:
        """Predicted seconds of its flow's work up to and with the request itself. `longest`: the
        edge of its longest row; 0: all replicas take all lengths."""
        flow, before_s, lanes = tracked.flow, tracked.cost_s, self._waiting.on_time
        counted = self._counted(longest) if longest else None
        if ranking is DEADLINES:
            # How much of what waits is due earlier is not known without a scan.
            return before_s * (counted(longest) if counted else 1.0)
        if ranking is ARRIVALS:
            ahead = lanes[flow.priority :][:1]
            if counted is not None:
                return before_s * counted(longest) + self._sum(ahead, longest)
            return before_s + sum([lane.waiting_s for lane in ahead])
        queue = lanes[flow.priority].queues.get(flow) if flow.rows else None
        if queue is not None:  # None: all that the flow has waiting are rows that travel alone
            if counted is None:
                before_s = queue.before_s(tracked.edge, before_s)
            else:
                before_s = queue.counted_before_s(longest, before_s, counted)
        if flow.peer_demand_s > 0.0:
            before_s += min(before_s, flow.peer_demand_s)
        return before_s

    def _counted(self, longest: int) -> Callable[[int], float]:
        """How many times the work of a bucket counts for a request of that length."""
        groups = self._replicas.groups

        def times(edge: int) -> float:
            capacity = groups.capacity_for(min(edge, longest))
            return groups.capacity / capacity if capacity > 0.0 else 1.0

        return times

    def _sum(self, lanes: Sequence[Lane], longest: int) -> float:
        """Predicted seconds of what waits in the lanes, as it stands before a request of that
        length: all of it, at all replicas; or what is no longer than a bound, at the replicas that
        take nothing longer; whichever is less."""
        groups, counted = self._replicas.groups, self._counted(longest)
        work = [(e, c.waiting_s) for lane in lanes for e, c in lane.length_classes.items()]
        least_s = sum([seconds * counted(edge) for edge, seconds in work])
        for bound in groups.bounds:
            capacity = groups.capacity_for(longest, bound)
            if capacity > 0.0:
                shorter_s = sum([seconds for edge, seconds in work if edge <= bound])
                least_s = min(least_s, shorter_s * groups.capacity / capacity)
        return least_s
