"""Which requests of a model go to its canary: what the registry tells gateways of a rollout."""

from __future__ import annotations

from dataclasses import dataclass

from deployments.contract.rollout.terms import RolloutTerms


@dataclass(frozen=True, slots=True)
class RolloutRoute:
    """What gateways do: `share` of the model's requests go to `canary`, copies of `shadow` of the
    others too, and rows of both compared by `terms`. `rollout`, `step`: what their counts are
    about."""

    rollout: int
    step: int
    canary: str
    share: float
    shadow: float
    terms: RolloutTerms
