"""All rollouts of a cluster, at most one a model. Pure state, given the time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from deployments.contract.description import ModelDescription
from deployments.contract.rollout.account import RolloutAccount, VersionAccount
from deployments.contract.rollout.observations import Observations, VersionObservations
from deployments.contract.rollout.route import RolloutRoute
from deployments.contract.rollout.terms import RolloutTerms
from deployments.control.registry.quantiles import median_s, whole
from deployments.control.registry.rollout import Rollout


@dataclass(slots=True)
class Rollouts:
    """Each rollout has a number that is above all earlier ones, across restarts too; for that the
    wall clock is used. Methods that decide return whether gateways must hear of it."""

    by_model: dict[str, Rollout] = field(default_factory=dict)
    last: int = 0

    def declare(self, names: Collection[str]) -> None:
        """Set the whole list of models that ought to exist. A rollout ends with its canary."""
        self.by_model = {n: r for n, r in self.by_model.items() if r.canary in names}

    def begin(self, model: str, terms: RolloutTerms, wall_s: float, now: float) -> int:
        """Begin a rollout and return its number; a rollout that is under way goes on."""
        known = self.by_model.get(model)
        if known is not None and not known.ended:
            return known.number
        self.last = max(self.last + 1, int(wall_s * 1000))
        self.by_model[model] = Rollout(model, self.last, terms, now)
        return self.last

    def look(
        self, now: float, models: Mapping[str, ModelDescription], said: Sequence[Observations]
    ) -> bool:
        """Decide what is due in each rollout. `models`: as announced, canaries included; `said`:
        the latest observations of each gateway."""
        changed = [
            rollout.look(now, models.get(name), models.get(rollout.canary), said)
            for name, rollout in self.by_model.items()
        ]
        return any(changed)

    def promote(self, model: str, now: float) -> bool:
        """False if the model has no undecided rollout."""
        return model in self.by_model and self.by_model[model].promote(now)

    def finish(self, model: str) -> bool:
        """False if the model is not being promoted."""
        return model in self.by_model and self.by_model[model].finish()

    def abort(self, model: str, why: str) -> bool:
        """False if no rollout of the model is under way."""
        return model in self.by_model and self.by_model[model].abort(why)

    def routes(self) -> dict[str, RolloutRoute]:
        return {name: route for name, r in self.by_model.items() if (route := r.route)}

    def accounts(self, now: float, models: Mapping[str, ModelDescription]) -> list[RolloutAccount]:
        return [
            account(rollout, now, models.get(name), models.get(rollout.canary))
            for name, rollout in sorted(self.by_model.items())
        ]


def account(
    rollout: Rollout, now: float, live: ModelDescription | None, canary: ModelDescription | None
) -> RolloutAccount:
    """`now`: on the registry's clock; `live`, `canary`: the two versions as announced, or None."""
    seen, route, terms = rollout.seen, rollout.route, rollout.terms
    return RolloutAccount(
        model=rollout.model,
        number=rollout.number,
        phase=rollout.phase,
        share=route.share if route else 0.0,
        step=rollout.step + 1,
        steps=len(terms.shares),
        held_s=now - rollout.since_s,
        hold_s=terms.hold_s,
        why=rollout.why,
        live=_version(live, seen.live),
        canary=_version(canary, seen.canary),
        copies=_version(canary, seen.copies),
        compared=seen.compared,
        agreed=seen.agreed,
    )


def _version(description: ModelDescription | None, seen: VersionObservations) -> VersionAccount:
    half_s = median_s(whole(seen.latencies))
    return VersionAccount(
        version=description.version if description else "",
        answered=seen.answered,
        failed=seen.failed,
        median_ms=None if half_s is None else half_s * 1000,
    )
