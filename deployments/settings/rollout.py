"""`rollout`: how a new version of a model takes the place of the live one."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from yaml_document.section import Section, listed, wrong

Percent = Annotated[float, Field(gt=0, le=100)]
Share = Annotated[float, Field(gt=0, lt=100)]  # of all requests nothing would be left to compare


class AgreementSettings(Section):
    cosine: float | None = Field(
        default=None,
        ge=-1,
        le=1,
        description="Least cosine between a row's output of the canary and the live version's.",
    )
    max_abs: float | None = Field(
        default=None, ge=0, description="Largest difference of any number of a row's outputs."
    )
    top1: bool = Field(
        default=False, description="Whether a row's largest output must be the same one."
    )
    least_percent: Percent = Field(
        default=99, description="Share of a request's rows that must agree, and of the requests."
    )

    @property
    def asked(self) -> bool:
        return self.cosine is not None or self.max_abs is not None or self.top1


class RolloutSettings(Section):
    steps_percent: Annotated[tuple[Share, ...], BeforeValidator(listed)] = Field(
        default=(5, 25, 50),
        min_length=1,
        max_length=20,
        examples=["[1, 5, 25, 50]"],
        description="Share of the requests that the new version gets, step by step, ascending; "
        "after the last one it takes over.",
    )
    hold_s: float = Field(
        default=60, gt=0, le=604_800, description="Each step lasts this long at least."
    )
    least_requests: int = Field(
        default=100,
        ge=1,
        le=1_000_000,
        description="And until the new version has had so many requests in it.",
    )
    shadow_percent: float = Field(
        default=0,
        ge=0,
        le=100,
        description="Share of the live version's requests that are copied to the new one, whose "
        "answers nobody gets; first, for one step, before it gets any requests of its own.",
    )
    replicas: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Replicas of the new version meanwhile, beside the live one's; unset, the "
        "largest share of requests or copies of the live version's number, or bounds, and 1 at "
        "least.",
    )
    max_errors_percent: float = Field(
        default=1,
        ge=0,
        le=100,
        description="The share of requests that the new version fails to answer may be so much "
        "larger than the live one's.",
    )
    max_latency_ratio: float = Field(
        default=1.5,
        ge=1,
        le=1000,
        description="Its median and its p90, by length, may be so many times the live version's.",
    )
    max_cost_ratio: float = Field(
        default=1.5,
        ge=1,
        le=1000,
        description="What its batches take, by length, may be so many times what the live "
        "version's take, as both have measured before they serve; a version that takes longer is "
        "given no request.",
    )
    agreement: AgreementSettings = Field(
        default_factory=AgreementSettings,
        description="What its answers to copied requests are held to beside the live version's; "
        "nothing unless a bound is named.",
    )

    @model_validator(mode="after")
    def _steps_ascend(self) -> RolloutSettings:
        steps = self.steps_percent
        if any(later <= earlier for earlier, later in pairwise(steps)):
            raise wrong("must ascend", "steps_percent")
        if self.agreement.asked and not self.shadow_percent:
            raise wrong(
                "is 0, and agreement has a bound, which only copied requests can show; must be "
                "more",
                "shadow_percent",
            )
        return self
