"""What does an arriving request that generates look like, and how much work does it ask for?

Its plan says what it will take (`estimates.generations`). Its bucket is that of its prompt and
predicted output together, so that short generations are told from long ones. Its latest start
leaves time to read the prompt tokens that are not cached. It is priced by weighted tokens.
"""

from __future__ import annotations

from typing import Any

from routers.api.errors import BadRequestEvent
from routers.api.requests import Request
from routers.api.settings import DispatcherSettings
from routers.api.snapshot import GenerationSnapshot
from routers.estimates.engine_speed import EngineSpeed
from routers.estimates.generations import Generations
from routers.estimates.groups import ReplicaGroup, ReplicaGroups
from routers.shared.arrivals import Arrivals
from routers.shared.requests import RequestTable
from routers.state.replicas import ReplicaSet
from routers.state.request_queue import RequestQueue
from routers.state.rows import TrackedRequest
from routers.stream.lease import TrackedStream


class StreamArrivals(Arrivals):
    """The arriving requests of one model that generates."""

    def __init__(
        self,
        settings: DispatcherSettings,
        waiting: RequestQueue,
        groups: ReplicaGroups,
        generations: Generations,
    ) -> None:
        super().__init__(settings, waiting, groups)
        self._generations = generations

    def track(self, request: Request, now: float) -> TrackedRequest:
        generations, generation = self._generations, request.generation
        assert generation is not None
        plan = generations.plan(request, generation)
        longest = self._waiting.edges[-1]
        edge = self.edge_of(min(plan.size, longest))
        reads = self.edge_of(max(1, plan.prompt - plan.cached))
        due = min(request.deadline, request.expires)
        latest = self._groups.latest_start(reads, now, due)
        costs = edge, generations.cost_s(plan)
        return TrackedStream(request, self.flow(request), now, latest, plan, costs)

    def forecast_edge(self, edge: int) -> int:
        return 0  # what a request takes depends on its output, which its length does not tell

    def price_s(self, tracked: TrackedRequest) -> float:
        return tracked.cost_s

    def count_turned_away(self, request: Request) -> None:
        self.turned_away_unread(request.tenant, request.priority)

    def first_token(self, group: ReplicaGroup, read: float, seconds: float) -> None:
        """Learn the turnaround of a first token: `seconds` after its lease was sent, with `read`
        tokens of the prompt to be read."""
        edge = self.edge_of(min(max(1, int(read)), self._waiting.edges[-1]))
        group.turnaround.observe(edge, seconds)


class StreamRequests(RequestTable):
    """The live requests of one model that generates."""

    def __init__(self, settings: DispatcherSettings, replicas: ReplicaSet[Any]) -> None:
        generation = settings.generation
        assert generation is not None
        self.generations = Generations(generation, self._token_s, frozen=settings.frozen)
        super().__init__(settings, replicas, by_room=True)
        self.bounds.row_s = self._row_s

    def make_arrivals(self, settings: DispatcherSettings) -> Arrivals:
        self.prompts = StreamArrivals(settings, self.waiting, self.groups, self.generations)
        return self.prompts

    def check(self, request: Request) -> None:
        if request.generation is None or len(request.lengths) > 1:
            raise BadRequestEvent(
                f"request {request.request_id} must generate and have one row, as all of its model"
            )

    def exceeds(self, request: Request) -> bool:
        """Prompt and output must fit the largest running replica, were they alone there."""
        assert request.generation is not None
        tokens, largest = request.lengths[0] + request.generation.max_tokens, self.largest
        return tokens > largest > 0.0

    @property
    def largest(self) -> float:
        """Capacity of the largest running replica; 0 while none runs."""
        return self._replicas.largest

    def adopt(self, settings: DispatcherSettings) -> None:
        """Go on under these settings for generation."""
        assert settings.generation is not None
        self.generations.adopt(settings.generation, frozen=settings.frozen)

    def generation_snapshot(self) -> GenerationSnapshot:
        return self.generations.snapshot(self._engine)

    @property
    def _engine(self) -> EngineSpeed:
        engine = self.groups.reference.engine
        assert engine is not None
        return engine

    def _token_s(self) -> float:
        return self._engine.token_s

    def _row_s(self) -> float:
        """What a request takes of a replica that is kept full; 0.0: not known yet."""
        return self.generations.request_s if self._engine.is_measured else 0.0
