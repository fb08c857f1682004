"""What does a new request find before it?

The on-time work of its flow that goes before it, by the order in force, what waits in more urgent
priorities, and who shares with it. Of a flow's work, as much again is reckoned at other gateways,
as far as is known, but no more than waits here: gateways take turns with a flow, or who has the
least here would always be called late. O(1) in what waits.
"""

from __future__ import annotations

from routers.api.policies import Ranking
from routers.policies.admission.types import Newcomer
from routers.state.flows import Flows
from routers.state.replicas import ReplicaSet
from routers.state.request_queue import RequestQueue
from routers.state.rows import TrackedRequest


class QueueAhead:
    """`capacity_in_s`: while no replica runs, seconds until one is expected to, as last told; 0.0:
    nobody knows."""

    def __init__(self, waiting: RequestQueue, flows: Flows, replicas: ReplicaSet) -> None:
        self._waiting = waiting
        self._flows = flows
        self._replicas = replicas
        self.capacity_in_s = 0.0

    def found_by(self, tracked: TrackedRequest, now: float) -> Newcomer:
        flow, waiting = tracked.flow, self._waiting
        edge = tracked.edge if tracked.plan is None else 0
        slack_s, capacity = tracked.latest_start - now, self._replicas.groups.capacity
        if slack_s <= 0.0 or not capacity:
            return Newcomer(tracked, waiting, edge, slack_s, capacity, self.capacity_in_s)
        priority, ranking, before_s = flow.priority, self._flows.order.ranking, 0.0
        shares = ranking is Ranking.SHARES
        is_behind = flow.rows > 0 if shares else self._has_waiting(priority)
        if is_behind or (tracked.plan is not None and not self._replicas.has_ready):
            # A generation that must wait for room stands behind itself alone.
            before_s = self._before_s(tracked, ranking)
        urgent_s = waiting.urgent_s(priority) if priority else 0.0
        rivals = self._flows.weights[priority] if shares else flow.weight
        return Newcomer(tracked, waiting, edge, slack_s, capacity, 0.0, before_s, urgent_s, rivals)

    def _has_waiting(self, priority: int) -> bool:
        lanes = self._waiting.on_time
        return priority < len(lanes) and lanes[priority].rows > 0

    def _before_s(self, tracked: TrackedRequest, ranking: Ranking) -> float:
        flow, before_s, lanes = tracked.flow, tracked.cost_s, self._waiting.on_time
        if ranking is Ranking.DEADLINES:
            return before_s  # how much of what waits is due earlier is not known without a scan
        if ranking is Ranking.ARRIVALS:
            return before_s + sum([lane.waiting_s for lane in lanes[flow.priority :][:1]])
        queue = lanes[flow.priority].queues.get(flow) if flow.rows else None
        if queue is not None:  # else all it has are retried rows
            before_s = queue.before_s(tracked.edge, before_s)
        if flow.peer_demand_s > 0.0:
            before_s += min(before_s, flow.peer_demand_s)
        return before_s
