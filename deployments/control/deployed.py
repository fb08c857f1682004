"""What a server runs: each model's live version, and the canaries beside them.

A canary is the next version of a model. It runs under a name of its own until it replaces the live
version or is removed. Plain data and changes of it; nothing is started or asked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from deployments.contract.rollout.terms import RolloutTerms, canary_of
from deployments.control.canary import canary_settings, rollout_terms
from deployments.settings.model import ModelSettings
from deployments.settings.tree import Settings

Stage = Literal["starting", "judged", "promoting", "leaving"]


@dataclass(frozen=True, slots=True)
class Canary:
    """The next version of one model.

    Stages: starting, on clusters alone (one machine lists a canary once it runs); judged by the
    registry; promoting, while its settings replace the live version's; leaving, when it gets no
    more requests, and is removed once those that it has are answered.
    """

    model: str
    settings: ModelSettings  # of the model, in the new version
    number: int  # grows with every canary of the server
    since_s: float  # begin of the stage; while judged, when the registry was told
    stage: Stage = "judged"
    rollout: int | None = None  # the registry's number; None until it has given one

    @property
    def name(self) -> str:
        return canary_of(self.model)

    @property
    def terms(self) -> RolloutTerms:
        """The terms that it is judged by."""
        assert self.settings.rollout is not None
        return rollout_terms(self.settings.rollout)

    @property
    def undecided(self) -> bool:
        return self.stage != "leaving"


@dataclass(frozen=True, slots=True)
class Deployed:
    """What a server runs."""

    settings: Settings  # of the live versions
    canaries: Mapping[str, Canary] = field(default_factory=dict)  # by model

    def listed(self) -> Settings:
        """All that Serve is to run, with canaries as models of their own. A version that is being
        promoted has replaced the live one here already."""
        models = dict(self.settings.models)
        for canary in self.canaries.values():
            if canary.stage == "promoting":
                models[canary.model] = canary.settings
            models[canary.name] = canary_settings(canary.settings)
        return self.settings.model_copy(update={"models": models})

    def having(self, canary: Canary) -> Deployed:
        """With this canary in place of the model's present one."""
        return replace(self, canaries={**self.canaries, canary.model: canary})

    def lacking(self, model: str) -> Deployed:
        """Without the model's canary."""
        return replace(self, canaries={n: c for n, c in self.canaries.items() if n != model})

    def promoted(self, canary: Canary) -> Deployed:
        """With the version of the canary, which is leaving, as the live one."""
        models = {**self.settings.models, canary.model: canary.settings}
        settings = self.settings.model_copy(update={"models": models})
        return replace(self, settings=settings).having(canary)


def leaving(canary: Canary, now: float) -> Canary:
    """The canary in its last stage."""
    return replace(canary, stage="leaving", since_s=now)
