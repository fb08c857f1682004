"""How fast simulated replicas start, and what happens to whoever decides about their number.

Part of the scenario format for `headrace simulate`, where the settings leave the number of replicas
to the autoscaler. Moments count from the end of the warm-up, in seconds.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from loadtests.traffic.scenario_traffic import Moment, Span
from yaml_document.section import Section, listed


class StartPart(Section):
    """A log-normal time."""

    median_s: Span = Field(default=13, description="Half of them take at most so long.")
    p90_s: Span = Field(default=16, description="Nine of ten do.")

    @model_validator(mode="after")
    def _ascends(self) -> StartPart:
        if self.p90_s < self.median_s:
            raise ValueError(f"p90_s is {self.p90_s:g}; must be at least the median")
        return self


class LoadPart(StartPart):
    median_s: Span = Field(default=2, description="Half of them take at most so long.")
    p90_s: Span = Field(default=3, description="Nine of ten do.")


class AwayPart(Section):
    from_s: Moment = Field(description="When it dies.")
    to_s: Moment = Field(description="When its successor begins, with what it had saved last.")


class ScalingPart(Section):
    start: StartPart = Field(
        default_factory=StartPart,
        description="From the order of a replica until it serves; measure it on the server.",
    )
    pool_start: LoadPart = Field(
        default_factory=LoadPart,
        description="Until a replica of the shared pool serves the model, once it is told to.",
    )
    cluster: dict[str, Annotated[float, Field(ge=0, le=1_000_000_000)]] = Field(
        default_factory=dict,
        description="What all nodes have, resource to amount (`{CPU: 8}`); more replicas are not "
        "asked for. Unset, enough.",
    )
    decider_away: Annotated[tuple[AwayPart, ...], BeforeValidator(listed)] = Field(
        default=(), description="Times without anybody who decides: numbers hold."
    )
