"""What does an arriving request look like to the core, and how much work is offered?

`Arrivals` turns a request into a `TrackedRequest`: a bucket for each row, a predicted cost, and a
latest start from the usual turnaround of the longest row's bucket. It also watches the traffic:

- Bucket edges follow the lengths of all arriving requests, admitted or not. New edges hold for new
  requests; rows that wait stay in their buckets.
- The mean gap between arrivals of a bucket says whether waiting for more rows pays.
- Offered work is counted whether or not the request may wait, which `admission` decides, and so is
  the share of requests that are refused.

Costs are predicted seconds on the reference group. `RequestTable` owns the one instance.
"""

from __future__ import annotations

from routers.api.requests import Reason, Request
from routers.api.settings import DispatcherSettings
from routers.estimates.batch_size import Gaps
from routers.estimates.groups import ReplicaGroups
from routers.estimates.pressure import RefusedShare
from routers.policies.registry import EDGES
from routers.shared.edges import EdgeSolver
from routers.state.flows import Flow
from routers.state.offered import OfferedWork
from routers.state.request_queue import RequestQueue
from routers.state.rows import Row, TrackedRequest


class Arrivals:
    """The arriving requests of one model. Writes `waiting.edges`, as does a change of settings."""

    def __init__(
        self, settings: DispatcherSettings, waiting: RequestQueue, groups: ReplicaGroups
    ) -> None:
        self.edges = EdgeSolver(settings, EDGES[settings.policies.edges]())
        self.gaps: dict[int, Gaps] = {}  # between arrivals of a bucket, by its edge
        self._pads, self._priorities = settings.pads, settings.priorities
        self._waiting = waiting
        self._groups = groups
        self.offered = OfferedWork()
        self.refused = RefusedShare()
        self._rows_seen = 0

    def adopt(self, settings: DispatcherSettings) -> None:
        """Adopt new settings; the lengths seen are kept as far as the edges stay."""
        self._pads, self._priorities = settings.pads, settings.priorities
        self.edges.adopt(settings, EDGES[settings.policies.edges]())

    def follow(self, lengths: tuple[int, ...], now: float) -> None:
        """Count the lengths, where edges adapt. If new edges are due and pay, adopt them; they are
        solved with the costs of the group that does most of the work."""
        solver, waiting = self.edges, self._waiting
        longest = waiting.edges[-1]
        for length in lengths:
            if length <= longest:
                solver.observe(length, now)
        if solver.due(now):
            groups, main = self._groups, self._groups.main
            edges = solver.solve(
                waiting.edges, main.cost.predict, now, groups.capacity / main.speed
            )
            if edges is not None:
                waiting.edges = edges
                groups.keep(edges)

    def track(self, request: Request, now: float) -> TrackedRequest:
        """The request as the core will keep it, without rows: `add_rows` makes them once it may
        wait."""
        lengths = request.lengths
        edge = longest_edge = self.edge_of(lengths[0])
        cost_s = self._cost_s(lengths[0], edge)
        if len(lengths) > 1:
            for length in lengths[1:]:
                row_edge = self.edge_of(length)
                longest_edge = max(longest_edge, row_edge)
                cost_s += self._cost_s(length, row_edge)
        due = min(request.deadline, request.expires)
        alone = self._groups.alone
        if alone is None:
            latest = self._groups.latest_start(longest_edge, now, due)
        else:
            latest = alone.latest_start(longest_edge, now, due)
        return TrackedRequest(request, self.flow(request), now, latest, edge, cost_s)

    def forecast_edge(self, edge: int) -> int:
        """The edge by which forecasts of a request in this bucket are told apart; 0: they are
        not."""
        return edge

    # -- offered work

    def price_s(self, tracked: TrackedRequest) -> float:
        """Predicted seconds of what the request asks for."""
        lengths = tracked.request.lengths
        if len(lengths) > 1:
            return self._work_s(lengths)
        return self._part_s(lengths[0], tracked.edge)

    def offers(self, request: Request, tracked: TrackedRequest) -> None:
        """Count the work of a request that is within all bounds. One that another model turned away
        first (not `is_first`) is no new demand."""
        work_s = tracked.work_s = self.price_s(tracked)
        if request.is_first:
            self.offered.add(work_s, request.lengths[0], tracked.flow.asks)
            if self._groups.bounds:
                self._offer_longer(request.lengths)

    def _offer_longer(self, lengths: tuple[int, ...]) -> None:
        """Count the work of the rows that not all groups take."""
        for bound in self._groups.bounds:
            longer = tuple([length for length in lengths if length > bound])
            self.offered.add_longer(bound, self._work_s(longer))

    def count_rejected(self, request: Request, reason: Reason) -> None:
        """Count the work of a request that was rejected before `track`. It is demand only where
        more replicas would have made a difference: rejected as late, or by a full queue."""
        is_demand = reason is Reason.LATE or reason is Reason.QUEUE_FULL
        if not is_demand or not request.is_first:
            return
        self.count_turned_away(request)

    def count_turned_away(self, request: Request) -> None:
        """Count the work of a request that is demand and was rejected before `track`."""
        flow = self._waiting.flows.by_key.get((request.priority, request.tenant))
        asks = None if flow is None else flow.asks
        self.offered.add(self._work_s(request.lengths), request.lengths[0], asks)
        self._offer_longer(request.lengths)

    def turned_away_unread(self, tenant: str, priority: int) -> None:
        """Count a request that was rejected by its headers alone, for want of replicas: as much
        work as its flow's requests usually ask for."""
        flow = self._waiting.flows.by_key.get((priority, tenant))
        self.offered.add_unread(None if flow is None else flow.asks)

    def served_elsewhere(self, tenant: str, priority: int, lengths: tuple[int, ...]) -> None:
        """Count a request that was offered here and answered elsewhere. `lengths`: () where they
        are unknown; then as much work as its flow's requests usually ask for."""
        flow, before_s = self._waiting.flows.by_key.get((priority, tenant)), self.offered.work_s
        asks = None if flow is None else flow.asks
        if lengths:
            longest = self._waiting.edges[-1]
            within = tuple([min(length, longest) for length in lengths])
            self.offered.add(self._work_s(within), within[0], asks)
            self._offer_longer(within)
        else:
            self.offered.add_unread(asks)
        self.offered.served_s += self.offered.work_s - before_s

    def _work_s(self, lengths: tuple[int, ...]) -> float:
        """Predicted seconds of these rows, each as its part of a full batch."""
        work_s = 0.0
        for length in lengths:
            work_s += self._part_s(length, self.edge_of(length))
        return work_s

    def _part_s(self, length: int, edge: int) -> float:
        """Predicted seconds of a row of this bucket, as its part of a full batch."""
        row_s = self._groups.reference.sizes.row_s(edge)
        return row_s if self._pads else row_s * length / edge

    def flow(self, request: Request) -> Flow:
        """The account that the request is charged to."""
        priority = min(max(request.priority, 0), self._priorities - 1)
        return self._waiting.flows.of(request.tenant, priority, request.weight)

    def add_rows(self, tracked: TrackedRequest) -> None:
        """Make the rows of a request that may wait."""
        request = tracked.request
        lengths = request.lengths
        if len(lengths) == 1:
            self._rows_seen += 1
            row = Row(tracked, 0, lengths[0], self._rows_seen, tracked.edge, tracked.cost_s)
            tracked.rows = (row,)
        else:
            tracked.rows = tuple([self._row(tracked, i, n) for i, n in enumerate(lengths)])
        if request.suspect:
            for row in tracked.rows:
                row.go_alone()

    def note(self, edge: int, now: float) -> None:
        """Count an arrival for the mean gap of this bucket; forget buckets that are no more."""
        gap = self.gaps.get(edge)
        if gap is None:
            for old in [each for each in self.gaps if each not in self._waiting.edges]:
                del self.gaps[old]
            gap = self.gaps[edge] = Gaps()
        gap.arrived(now)

    def _row(self, tracked: TrackedRequest, index: int, length: int) -> Row:
        edge = self.edge_of(length)
        self._rows_seen += 1
        return Row(tracked, index, length, self._rows_seen, edge, self._cost_s(length, edge))

    def edge_of(self, length: int) -> int:
        """Of the bucket for this length, which is at most the last edge."""
        for edge in self._waiting.edges:
            if length <= edge:
                return edge
        raise IndexError(length)

    def _cost_s(self, length: int, edge: int) -> float:
        cost_s = self._groups.reference.cost.unit_s(edge)
        return cost_s if self._pads else cost_s * length / edge
