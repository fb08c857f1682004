"""The part of the scenario format that describes autoscaling in a simulation: how fast replicas
start, and when the autoscaler is away.

Only `headrace simulate` uses it, if the settings leave the number of replicas to the autoscaler.
Points in time are seconds from the end of the warm-up.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from loadtests.traffic.scenario_traffic import Moment, Span
from yaml_document.section import Section, listed


class StartPart(Section):
    """A log-normal time."""

    median_s: Span = Field(default=13, description="Median of the time.")
    p90_s: Span = Field(default=16, description="90th percentile of the time.")

    @model_validator(mode="after")
    def _ascends(self) -> StartPart:
        if self.p90_s < self.median_s:
            raise ValueError(f"p90_s is {self.p90_s:g}; must be at least the median")
        return self


class LoadPart(StartPart):
    median_s: Span = Field(default=2, description="Median of the time.")
    p90_s: Span = Field(default=3, description="90th percentile of the time.")


class AwayPart(Section):
    from_s: Moment = Field(description="When the autoscaler dies.")
    to_s: Moment = Field(
        description="When its successor starts, with the state that was saved last."
    )


class ScalingPart(Section):
    start: StartPart = Field(
        default_factory=StartPart,
        description="Time from the order of a replica until it serves, log-normally distributed; "
        "measure it on your server.",
    )
    pool_start: LoadPart = Field(
        default_factory=LoadPart,
        description="Time that a replica of the shared pool takes to load the model and serve it, "
        "log-normally distributed.",
    )
    cluster: dict[str, Annotated[float, Field(ge=0, le=1_000_000_000)]] = Field(
        default_factory=dict,
        description="Resources of all nodes together, by name (`{CPU: 8}`), which bound the "
        "number of replicas; unset, no bound.",
    )
    decider_away: Annotated[tuple[AwayPart, ...], BeforeValidator(listed)] = Field(
        default=(),
        description="Times without an autoscaler, in which the numbers of replicas do not change.",
    )
