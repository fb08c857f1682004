"""`rollout`: how a new version of a model replaces the live one.

During a rollout the new version is the canary. It gets a growing share of the requests and is
compared with the live version; a bound that it breaks ends the rollout and takes it back.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from deployments.settings.gone import GONE
from yaml_document.section import Section, listed, wrong

# A step of 100 % would leave the live version no requests to be compared by.
Share = Annotated[float, Field(gt=0, lt=100)]


class AgreementSettings(Section):
    gone = GONE["agreement"]
    cosine: float | None = Field(
        default=None,
        ge=-1,
        le=1,
        description="Least cosine similarity between a row's output from the new version and from "
        "the live one. Unset: any.",
    )
    max_abs: float | None = Field(
        default=None,
        ge=0,
        description="Largest absolute difference of any number of a row's outputs. Unset: any.",
    )
    top1: bool = Field(
        default=False,
        description="Whether the largest number of a row's output must be at the same place.",
    )

    @property
    def asked(self) -> bool:
        return self.cosine is not None or self.max_abs is not None or self.top1


class RolloutSettings(Section):
    gone = GONE["rollout"]
    steps_percent: Annotated[tuple[Share, ...], BeforeValidator(listed)] = Field(
        default=(5, 25, 50),
        min_length=1,
        max_length=20,
        examples=["[1, 5, 25, 50]"],
        description="Share of the requests, in %, that the new version gets in each step, "
        "ascending. After the last step it replaces the live version.",
    )
    hold_s: float = Field(
        default=60, gt=0, le=604_800, description="Each step lasts at least this long."
    )
    min_requests: int = Field(
        default=100,
        ge=1,
        le=1_000_000,
        description="Each step also lasts until the new version has answered so many requests in "
        "it.",
    )
    shadow_percent: float = Field(
        default=0,
        ge=0,
        le=100,
        description="Share of the live version's requests, in %, that are copied to the new "
        "version; callers never get the new version's answers to copies. If above 0, a first step "
        "has copies only.",
    )
    replicas: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Replicas of the new version during the rollout, besides those of the live "
        "one. Unset: the number (or bounds) of the live version's replicas, times the largest "
        "share of requests or copies, at least 1.",
    )
    max_errors_percent: float = Field(
        default=1,
        ge=0,
        le=100,
        description="Largest difference, in percentage points, by which the new version may fail "
        "more requests than the live one.",
    )
    max_latency_ratio: float = Field(
        default=1.5,
        ge=1,
        le=1000,
        description="The new version's median and p90 latency, by length, may be at most so many "
        "times the live version's; and so may the time of its batches, measured before it serves. "
        "A slower version gets no request at all.",
    )
    agreement: AgreementSettings = Field(
        default_factory=AgreementSettings,
        description="How closely the answers to copied requests must agree with the live "
        "version's. Without any bound they are not compared.",
    )

    @model_validator(mode="after")
    def _steps_ascend(self) -> RolloutSettings:
        steps = self.steps_percent
        if any(later <= earlier for earlier, later in pairwise(steps)):
            listed_steps = ", ".join(f"{step:g}" for step in steps)
            raise wrong(f"is {listed_steps}; must ascend", "steps_percent")
        if self.agreement.asked and not self.shadow_percent:
            raise wrong(
                "is 0, but agreement has a bound, which only copied requests can show; must be "
                "above 0",
                "shadow_percent",
            )
        return self
