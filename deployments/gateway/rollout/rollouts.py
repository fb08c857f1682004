"""All rollouts at one gateway: which version a request goes to, and what was seen of both.

Follows the routes that the registry has decided. Counts are of one step of one rollout, and begin
anew with the next; the registry adds up what all gateways say of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from deployments.contract.rollout.observations import Observations
from deployments.contract.rollout.rollout import RolloutRoute
from deployments.gateway.preprocess.fair_thread_pool import FairThreadPool
from deployments.gateway.queues.catalogue import Catalogue
from deployments.gateway.queues.served_model import ServedModel
from deployments.gateway.rollout.copies import Answered, Copies
from deployments.gateway.rollout.even_share import EvenShare
from deployments.gateway.rollout.trial import Trial


@dataclass(frozen=True, slots=True)
class _Step:
    """`canaries`, `copied`: which requests go there, and which are copied there."""

    route: RolloutRoute
    seen: Observations
    canaries: EvenShare
    copied: EvenShare


class GatewayRollouts:
    """`models`: knows the routes. `pool`: compares answers. `priorities`: of requests; copies have
    the last."""

    def __init__(self, models: Catalogue, pool: FairThreadPool, priorities: int) -> None:
        self._models = models
        self._steps: dict[str, _Step] = {}
        self._copies = Copies(pool, priorities - 1)

    def trial(self, name: str, version: str | None) -> Trial | None:
        """Of one request, which asks for `version`; None where the model has no rollout, or its
        caller asks for another model."""
        route = self._models.routes.get(name)
        if route is None:
            return None
        step = self._step(name, route)
        canary = self._models.canary(route.canary)
        if version is not None:
            canary = canary if route.share and self._is_its_own(name, version, canary) else None
        elif not step.canaries.takes():
            canary = None
        return Trial(step.seen, canary, pinned=version is not None)

    def answered(self, name: str, answered: Answered) -> None:
        """The live version's answer is on its way to the caller: some are compared."""
        step = self._steps.get(name)
        if step is None or self._models.routes.get(name) is not step.route or self._models.draining:
            return
        if step.route.shadow and step.copied.takes():
            canary = self._models.canary(step.route.canary)
            if canary is not None:
                self._copies.make(canary, answered, step.seen, step.route.terms.agreement)

    def report(self) -> list[Observations]:
        """Of each route that is in force, requests or not."""
        return [self._told(name, route) for name, route in self._models.routes.items()]

    def _told(self, name: str, route: RolloutRoute) -> Observations:
        seen, canary = self._step(name, route).seen, self._models.canary(route.canary)
        seen.reached = 0 if canary is None else canary.replicas
        return seen

    def _step(self, name: str, route: RolloutRoute) -> _Step:
        """Numbers are drawn alike at every gateway: which requests reach it is drawn elsewhere."""
        known = self._steps.get(name)
        if known is not None and known.route is route:
            return known
        step = _next(known, route)
        self._steps = {n: s for n, s in self._steps.items() if n in self._models.routes}
        self._steps[name] = step
        return step

    def _is_its_own(self, name: str, version: str, canary: ServedModel | None) -> bool:
        """Whether the version is the canary's, and not the live one's as well."""
        live = self._models.served.get(name)
        if live is not None and live.description.version == version:
            return False
        return canary is not None and canary.description.version == version


def _next(known: _Step | None, route: RolloutRoute) -> _Step:
    """What goes on when the registry has spoken: all of it if it said the same as before, the
    counts if it is about the same step."""
    if known is not None and known.route == route:
        return replace(known, route=route)
    seen = None if known is None else known.seen
    if seen is None or (seen.rollout, seen.step) != (route.rollout, route.step):
        seen = Observations(route.rollout, route.step)
    rng = Random(route.rollout)
    return _Step(route, seen, EvenShare(route.share, rng), EvenShare(route.shadow, rng))
