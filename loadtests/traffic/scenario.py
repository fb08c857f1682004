"""A scenario: who calls how often with what, for how long, and what breaks meanwhile.

`headrace simulate` and the load generator share this format. These classes are the file's content,
checked once and then immutable. `scenario_file.py` reads the file; `plan.py` makes requests from
it. Times in ms are promises to callers or callers' patience; times in s are moments and spans.
Moments count from the end of the warm-up. Rates are requests a second over all gateways; lengths
are tokens. The model, its tenants and their limits are in the settings file that a scenario names;
a server other than Headrace needs none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from loadtests.traffic.scenario_faults import DevicePart, EnginePart, FaultsPart, JoinPart
from loadtests.traffic.scenario_scaling import ScalingPart
from loadtests.traffic.scenario_traffic import (
    ArrivalsPart,
    LengthsPart,
    Pause,
    Rate,
    RetryPart,
    Share,
    Span,
)
from yaml_document.section import Section, listed

Portion = Annotated[float, Field(ge=0, le=1)]


class TenantPart(Section):
    """One tenant's callers. Weight, limits and keys are the settings file's."""

    share: Share | None = Field(
        default=None, description="Share of the scenario's `arrivals`; or it has its own."
    )
    arrivals: ArrivalsPart | None = Field(default=None, description="Arrivals of its own.")
    lengths: LengthsPart | None = Field(
        default=None, description="Lengths of its own; unset, the scenario's."
    )
    output: LengthsPart | None = Field(
        default=None, description="Tokens its generations ask for; unset, the scenario's."
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="What its generations ask for when they are simulated, `output` being what "
        "they come to; unset, `output`.",
    )
    prefix_tokens: int = Field(
        default=0,
        ge=0,
        le=1_048_576,
        description="Tokens that all of its simulated prompts begin with.",
    )
    rows: int = Field(default=1, ge=1, le=10_000, description="Rows in each request.")
    priority: str | None = Field(
        default=None, description="What its requests ask for; unset, what the settings give it."
    )
    budget_ms: Span | None = Field(
        default=None,
        description="Time its requests give the server (`x-timeout-ms`): deadline and timeout in "
        "one; unset, the model's deadline and timeout.",
    )
    leave_after_ms: Span | None = Field(
        default=None, description="When its callers hang up; unset, never before the timeout."
    )
    leave_share: Portion = Field(default=1, description="Share of its requests that they do so to.")
    malformed: Portion = Field(
        default=0,
        description="Share of its requests that are none: broken JSON, wrong types, half a body. "
        "They are sent beside what counts, and not simulated.",
    )
    retry: RetryPart = Field(default_factory=RetryPart, description="What a refusal leads to.")
    gateways: Annotated[tuple[Rate, ...], BeforeValidator(listed)] = Field(
        default=(),
        description="Shares of its requests by gateway (`[1, 0]`: all to the first); unset, even.",
    )
    sessions: int = Field(
        default=0, ge=0, description="Sessions its requests belong to, drawn evenly; 0: none."
    )
    retryable: bool = Field(default=True, description="Whether its requests may run twice.")

    @model_validator(mode="after")
    def _sensible(self) -> TenantPart:
        if self.share is not None and self.arrivals is not None:
            raise ValueError("has a share of the arrivals and arrivals of its own; may have one")
        if self.gateways and not sum(self.gateways):
            raise ValueError("gateways must not all be 0")
        return self


class Scenario(Section):
    settings: str | None = Field(
        default=None,
        description="Settings file of the server: its model, tenants and gateways; relative to "
        "this file. Without it a scenario can be played and not simulated.",
    )
    model: str | None = Field(
        default=None, description="Which of its models; unset, the only one there is."
    )
    about: str = Field(default="", description="What the scenario shows, for people.")
    seed: int = Field(default=1, description="Decides every random choice.")
    duration_s: Span = Field(description="How long requests are sent and counted.")
    warmup_s: Pause = Field(default=0, description="How long they are sent before that, uncounted.")
    arrivals: ArrivalsPart | None = Field(
        default=None, description="When requests come; tenants take shares of it."
    )
    lengths: LengthsPart | None = Field(
        default=None, description="How long rows are, of tenants that do not say."
    )
    output: LengthsPart | None = Field(
        default=None,
        description="How many tokens generations ask for (`max_tokens`), and come to where they "
        "are simulated.",
    )
    tenants: dict[str, TenantPart] = Field(
        default_factory=dict, description="Who calls; none means one, `default`."
    )
    replicas: int | None = Field(
        default=None, ge=0, le=100_000, description="Instead of the settings' count."
    )
    joins: Annotated[tuple[JoinPart, ...], BeforeValidator(listed)] = Field(
        default=(), description="Further simulated replicas, each from a moment on."
    )
    gateways: int | None = Field(
        default=None, ge=1, le=256, description="Instead of the settings' number."
    )
    device: DevicePart | None = Field(
        default=None,
        description="The simulated device; unset, the options of a `synthetic` model.",
    )
    engine: EnginePart | None = Field(
        default=None,
        description="The simulated device of a model that generates; unset, one with the defaults.",
    )
    transport_ms: Pause = Field(
        default=1, description="Simulated round trip between a gateway and a replica."
    )
    network_ms: Pause = Field(
        default=0,
        description="Simulated time of a request outside of queue and replica: HTTP both ways.",
    )
    scaling: ScalingPart | None = Field(
        default=None,
        description="How replicas start where the settings give a range (`replicas.min`, `max`); "
        "unset, with the defaults.",
    )
    faults: FaultsPart = Field(default_factory=FaultsPart, description="What breaks.")

    @model_validator(mode="after")
    def _everybody_calls(self) -> Scenario:
        for name, tenant in self.callers():
            arrivals = self.arrivals_of(tenant)
            if arrivals is None:
                raise ValueError(f"tenant {name} has no arrivals; give it or the scenario some")
            lengths = tenant.lengths or self.lengths
            if lengths is None:
                raise ValueError(f"tenant {name} has no lengths; give it or the scenario some")
            columns = [each.column for each in (lengths, self.output_of(tenant)) if each]
            recorded = {each.process for each in arrivals.sources} == {"trace"}
            if any(column is not None for column in columns) and not recorded:
                raise ValueError(f"tenant {name} has lengths from a trace and no trace's arrivals")
            if len(tenant.gateways) > (self.gateways or 256):
                raise ValueError(f"tenant {name} names more gateways than there are")
        sharing = [tenant for _, tenant in self.callers() if tenant.arrivals is None]
        closed = self.arrivals is not None and self.arrivals.process == "closed"
        if closed and len(sharing) > 1:
            raise ValueError("closed arrivals cannot be shared; give each tenant its own")
        return self

    def callers(self) -> Iterator[tuple[str, TenantPart]]:
        """Tenants by name, in the file's order."""
        yield from (self.tenants or {"default": TenantPart()}).items()

    def arrivals_of(self, tenant: TenantPart) -> ArrivalsPart | None:
        return tenant.arrivals or self.arrivals

    def lengths_of(self, tenant: TenantPart) -> LengthsPart:
        found = tenant.lengths or self.lengths
        assert found is not None, "checked when the scenario was made"
        return found

    def output_of(self, tenant: TenantPart) -> LengthsPart | None:
        return tenant.output or self.output

    def slice_of(self, name: str) -> tuple[float, float]:
        """Where, in 0..1, a tenant's slice of the arrivals that it takes part in lies."""
        sharing = {n: t.share or 1.0 for n, t in self.callers() if t.arrivals is None}
        if name not in sharing:
            return 0.0, 1.0
        upto = dict(zip(sharing, accumulate(sharing.values()), strict=True))
        total = sum(sharing.values())
        return (upto[name] - sharing[name]) / total, upto[name] / total

    @property
    def run_s(self) -> float:
        """Seconds during which requests are sent."""
        return self.warmup_s + self.duration_s
