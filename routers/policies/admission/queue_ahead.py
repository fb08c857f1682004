"""What does a new request find before it?

Three things: the on-time work of its flow that goes before it by the order in force, the on-time
work in more urgent priorities, and the flows that it shares the replicas with. Work that waits for
the flow at other gateways counts, as far as reports tell, but at most as much as waits here:
gateways take turns with a flow, and a request at the gateway with the least of the flow's work
would otherwise always be called late. Unit: predicted device seconds. O(1) in what waits.
"""

from __future__ import annotations

from routers.api.policies import Ranking
from routers.policies.admission.types import Newcomer
from routers.state.flows import Flows
from routers.state.replicas import ReplicaSet
from routers.state.request_queue import RequestQueue
from routers.state.rows import TrackedRequest


class QueueAhead:
    """Makes `Newcomer` records. `capacity_in_s`: while no replica runs, seconds until one is
    expected, as last told; 0.0: not known."""

    def __init__(self, waiting: RequestQueue, flows: Flows, replicas: ReplicaSet) -> None:
        self._waiting = waiting
        self._flows = flows
        self._replicas = replicas
        self.capacity_in_s = 0.0

    def found_by(self, tracked: TrackedRequest, now: float) -> Newcomer:
        """The request with what it finds; changes nothing."""
        flow, waiting = tracked.flow, self._waiting
        edge = tracked.edge if tracked.plan is None else 0
        slack_s, capacity = tracked.latest_start - now, self._replicas.groups.capacity
        if slack_s <= 0.0 or not capacity:
            return Newcomer(tracked, waiting, edge, slack_s, capacity, self.capacity_in_s)
        priority, ranking, before_s = flow.priority, self._flows.order.ranking, 0.0
        shares = ranking is Ranking.SHARES
        is_behind = flow.rows > 0 if shares else self._has_waiting(priority)
        if is_behind or (tracked.plan is not None and not self._replicas.has_ready):
            # A generation without room waits even if its flow has nothing else in the queue.
            before_s = self._before_s(tracked, ranking)
        urgent_s = waiting.urgent_s(priority) if priority else 0.0
        competing_weight = self._flows.weights[priority] if shares else flow.weight
        return Newcomer(
            tracked, waiting, edge, slack_s, capacity, 0.0, before_s, urgent_s, competing_weight
        )

    def _has_waiting(self, priority: int) -> bool:
        lanes = self._waiting.on_time
        return priority < len(lanes) and lanes[priority].rows > 0

    def _before_s(self, tracked: TrackedRequest, ranking: Ranking) -> float:
        """Predicted seconds of its flow's work up to and with the request itself."""
        flow, before_s, lanes = tracked.flow, tracked.cost_s, self._waiting.on_time
        if ranking is Ranking.DEADLINES:
            return before_s  # how much of what waits is due earlier is not known without a scan
        if ranking is Ranking.ARRIVALS:
            return before_s + sum([lane.waiting_s for lane in lanes[flow.priority :][:1]])
        queue = lanes[flow.priority].queues.get(flow) if flow.rows else None
        if queue is not None:  # None: all that the flow has waiting are rows that travel alone
            before_s = queue.before_s(tracked.edge, before_s)
        if flow.peer_demand_s > 0.0:
            before_s += min(before_s, flow.peer_demand_s)
        return before_s
