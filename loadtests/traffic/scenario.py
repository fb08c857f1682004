"""The scenario format: which tenants send requests, how often, how long, and what breaks meanwhile.

`headrace simulate` and the load generator share this format. These classes are a file's content,
which is checked once and then immutable. `scenario_file.py` reads the file; `plan.py` makes
requests from it. Points in time (`at_s`, `from_s`, …) are seconds from the end of the warm-up.
Rates are requests a second over all gateways; lengths are tokens. The model, its tenants and their
limits are in the settings file that a scenario names; a scenario for a server other than Headrace
needs none.
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
    """One tenant's callers. Its weight, limits and keys are in the settings file."""

    share: Share | None = Field(
        default=None,
        description="The tenant's share of the scenario's `arrivals`, relative to the other "
        "tenants' shares. Not with `arrivals` of its own.",
    )
    arrivals: ArrivalsPart | None = Field(
        default=None,
        description="The tenant's own arrivals; unset, a share of the scenario's.",
    )
    lengths: LengthsPart | None = Field(
        default=None,
        description="Lengths of the tenant's rows (of prompts, for a model that generates); unset, "
        "the scenario's.",
    )
    output: LengthsPart | None = Field(
        default=None,
        description="Output tokens that the tenant's generations ask for (`max_tokens`); unset, "
        "the scenario's.",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="`max_tokens` of simulated generations, of which `output` is then the number "
        "of tokens that they produce. Unset, they produce as many as they ask for.",
    )
    prefix_tokens: int = Field(
        default=0,
        ge=0,
        le=1_048_576,
        description="Length of the beginning that all simulated prompts of the tenant share.",
    )
    rows: int = Field(default=1, ge=1, le=10_000, description="Rows in each request.")
    priority: str | None = Field(
        default=None,
        description="Priority that the tenant's requests ask for; unset, the one in the settings.",
    )
    budget_ms: Span | None = Field(
        default=None,
        description="The `x-timeout-ms` of the tenant's requests, which is both their deadline and "
        "their timeout; unset, the model's.",
    )
    leave_after_ms: Span | None = Field(
        default=None,
        description="Time after which callers cancel a request; unset, they wait for its timeout.",
    )
    leave_share: Portion = Field(
        default=1, description="Share of the tenant's requests to which `leave_after_ms` applies."
    )
    malformed: Portion = Field(
        default=0,
        description="Share of malformed requests: broken JSON, wrong types, half a body. They are "
        "sent in addition to the other requests, not counted, and not simulated.",
    )
    retry: RetryPart = Field(
        default_factory=RetryPart, description="Whether and when callers retry a refused request."
    )
    gateways: Annotated[tuple[Rate, ...], BeforeValidator(listed)] = Field(
        default=(),
        description="The gateways' shares of the tenant's requests (`[1, 0]`: all to the first); "
        "unset, equal shares.",
    )
    sessions: int = Field(
        default=0,
        ge=0,
        description="Number of sessions. Each request belongs to one, drawn uniformly. 0: requests "
        "have no session.",
    )
    retryable: bool = Field(
        default=True,
        description="Whether a request may run more than once, as a copy or after a loss.",
    )

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
        description="The server's settings file, with its models, tenants and gateways; relative "
        "to this file. The simulator needs it; the load generator does not.",
    )
    model: str | None = Field(
        default=None,
        description="Name of the model that is called; unset, the settings' only model.",
    )
    about: str = Field(default="", description="What the scenario shows, for people.")
    seed: int = Field(
        default=1, description="Seed of all random choices; the same seed gives the same requests."
    )
    duration_s: Span = Field(
        description="How long requests are sent and counted, after the warm-up."
    )
    warmup_s: Pause = Field(
        default=0, description="How long requests are sent before that and not counted."
    )
    arrivals: ArrivalsPart | None = Field(
        default=None,
        description="When requests are sent; divided among the tenants without arrivals of their "
        "own.",
    )
    lengths: LengthsPart | None = Field(
        default=None, description="Lengths of rows, for tenants without lengths of their own."
    )
    output: LengthsPart | None = Field(
        default=None,
        description="Output tokens that generations ask for (`max_tokens`); simulated ones produce "
        "as many.",
    )
    tenants: dict[str, TenantPart] = Field(
        default_factory=dict, description="The tenants that call; unset, one named `default`."
    )
    replicas: int | None = Field(
        default=None,
        ge=0,
        le=100_000,
        description="Simulated replicas; unset, the settings' number.",
    )
    joins: Annotated[tuple[JoinPart, ...], BeforeValidator(listed)] = Field(
        default=(), description="Simulated replicas that are added during the run."
    )
    gateways: int | None = Field(
        default=None, ge=1, le=256, description="Gateways; unset, the settings' number."
    )
    device: DevicePart | None = Field(
        default=None,
        description="The simulated device of a model that runs batches; unset, the options of a "
        "`synthetic` model.",
    )
    engine: EnginePart | None = Field(
        default=None,
        description="The simulated engine of a model that generates; unset, one with the defaults. "
        "A step in which N sequences get a token and P tokens of prompts are read takes `base_ms` "
        "+ `per_sequence_ms` · N + `per_token_us` · P.",
    )
    transport_ms: Pause = Field(
        default=1, description="Simulated round-trip time between a gateway and a replica."
    )
    network_ms: Pause = Field(
        default=0,
        description="Simulated time that a request spends outside queue and replica: HTTP, both "
        "ways.",
    )
    scaling: ScalingPart | None = Field(
        default=None,
        description="How fast simulated replicas start, if the settings give a range of replicas "
        "(`replicas.min`, `replicas.max`); unset, the defaults.",
    )
    faults: FaultsPart = Field(
        default_factory=FaultsPart, description="What breaks in a simulation; unset, nothing."
    )

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
                raise ValueError(
                    f"tenant {name} has lengths from a trace, but its arrivals are not from a trace"
                )
            if len(tenant.gateways) > (self.gateways or 256):
                raise ValueError(f"tenant {name} has shares for more gateways than there are")
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
        """The begin and end (0..1) of a tenant's part of its arrivals; (0, 1) if it shares none."""
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
