"""Which version does a request of a model under rollout go to, and what was seen of both versions?

Follows the routes that the registry has decided on. Counts belong to one step of one rollout and
begin anew with the next step; the registry adds up what all gateways report.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from deployments.contract.rollout.observations import Observations
from deployments.contract.rollout.terms import RolloutRoute
from deployments.gateway.models.catalogue import Catalogue
from deployments.gateway.models.served_model import ServedModel
from deployments.gateway.rollout.canary_assignment import CanaryAssignment, EvenShare
from deployments.gateway.rollout.shadow_traffic import Answered, ShadowTraffic
from deployments.gateway.tenancy.fair_thread_pool import FairThreadPool


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of one model's rollout, at this gateway."""

    route: RolloutRoute
    seen: Observations
    canaries: EvenShare  # the requests that go to the canary
    copied: EvenShare  # the other requests that are copied to it


class GatewayRollouts:
    """All rollouts at one gateway."""

    def __init__(
        self,
        models: Catalogue,  # knows the routes
        pool: FairThreadPool,  # compares answers
        priorities: int,  # how many there are; copies have the last one
    ) -> None:
        self._models = models
        self._steps: dict[str, _Step] = {}  # by model
        self._copies = ShadowTraffic(pool, priorities - 1)

    def assignment(self, name: str, version: str | None) -> CanaryAssignment | None:
        """The assignment of a new request that asks for `version` (None: any). None: the model
        is not under rollout."""
        route = self._models.routes.get(name)
        if route is None:
            return None
        step = self._step(name, route)
        canary = self._models.canary(route.canary)
        if version is not None:
            canary = canary if route.share and self._is_canarys(name, version, canary) else None
        elif not step.canaries.takes():
            canary = None
        return CanaryAssignment(step.seen, canary, pinned=version is not None)

    def answered(self, name: str, answered: Answered) -> None:
        """The live version has answered a request: copy it to the canary if its turn has come."""
        step = self._steps.get(name)
        if step is None or self._models.routes.get(name) is not step.route or self._models.draining:
            return
        if step.route.shadow and step.copied.takes():
            canary = self._models.canary(step.route.canary)
            if canary is not None:
                self._copies.make(canary, answered, step.seen, step.route.terms.agreement)

    def report(self) -> list[Observations]:
        """The observations of each route in force, also where no request came."""
        return [self._observed(name, route) for name, route in self._models.routes.items()]

    def _observed(self, name: str, route: RolloutRoute) -> Observations:
        seen, canary = self._step(name, route).seen, self._models.canary(route.canary)
        seen.reached = 0 if canary is None else canary.replicas
        return seen

    def _step(self, name: str, route: RolloutRoute) -> _Step:
        """The present step of a model's rollout. Every gateway draws the same places: which
        requests reach which gateway is random already."""
        known = self._steps.get(name)
        if known is not None and known.route is route:
            return known
        step = _next(known, route)
        self._steps = {n: s for n, s in self._steps.items() if n in self._models.routes}
        self._steps[name] = step
        return step

    def _is_canarys(self, name: str, version: str, canary: ServedModel | None) -> bool:
        """Whether this is the canary's version, and not the live one's as well."""
        live = self._models.served.get(name)
        if live is not None and live.description.version == version:
            return False
        return canary is not None and canary.description.version == version


def _next(known: _Step | None, route: RolloutRoute) -> _Step:
    """The step after a new route came from the registry. An equal route changes nothing; another
    route of the same step keeps the counts."""
    if known is not None and known.route == route:
        return replace(known, route=route)
    seen = None if known is None else known.seen
    if seen is None or (seen.rollout, seen.step) != (route.rollout, route.step):
        seen = Observations(route.rollout, route.step)
    rng = Random(route.rollout)
    return _Step(route, seen, EvenShare(route.share, rng), EvenShare(route.shadow, rng))
