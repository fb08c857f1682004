"""What a server runs: each model's live version, and the canaries beside them.

A canary is the next version of a model, under a name of its own, until it takes the live one's
place or goes. Plain data and its changes; nothing is started or asked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from deployments.cluster.canary import canary_settings, rollout_terms
from deployments.contract.rollout.terms import RolloutTerms, canary_of
from deployments.settings.model import ModelSettings
from deployments.settings.tree import Settings

Stage = Literal["judged", "promoting", "leaving"]


@dataclass(frozen=True, slots=True)
class Canary:
    """`settings`: of the model, as the new version has them. stage: judged by the registry;
    promoting: its settings are put in the live version's place; leaving: it gets no requests more,
    and goes when those it has are answered. number: grows with every canary of the server.
    rollout: the registry's number, None until it has one. since_s: in this stage; while judged,
    since the registry was told of it."""

    model: str
    settings: ModelSettings
    number: int
    since_s: float
    stage: Stage = "judged"
    rollout: int | None = None

    @property
    def name(self) -> str:
        return canary_of(self.model)

    @property
    def terms(self) -> RolloutTerms:
        """What it is held to."""
        assert self.settings.rollout is not None
        return rollout_terms(self.settings.rollout)

    @property
    def undecided(self) -> bool:
        return self.stage != "leaving"


@dataclass(frozen=True, slots=True)
class Deployed:
    """`settings`: of the live versions. canaries: by model."""

    settings: Settings
    canaries: Mapping[str, Canary] = field(default_factory=dict)

    def listed(self) -> Settings:
        """All that Serve is to run, canaries as models of their own; a version that is promoted
        stands in the live one's place already."""
        models = dict(self.settings.models)
        for canary in self.canaries.values():
            if canary.stage == "promoting":
                models[canary.model] = canary.settings
            models[canary.name] = canary_settings(canary.settings)
        return self.settings.model_copy(update={"models": models})

    def having(self, canary: Canary) -> Deployed:
        return replace(self, canaries={**self.canaries, canary.model: canary})

    def lacking(self, model: str) -> Deployed:
        """Without the model's canary."""
        return replace(self, canaries={n: c for n, c in self.canaries.items() if n != model})

    def promoted(self, canary: Canary, now: float) -> Deployed:
        """The canary's version is the live one."""
        models = {**self.settings.models, canary.model: canary.settings}
        settings = self.settings.model_copy(update={"models": models})
        return replace(self, settings=settings).having(leaving(canary, now))


def leaving(canary: Canary, now: float) -> Canary:
    return replace(canary, stage="leaving", since_s=now)
