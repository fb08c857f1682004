"""When do a scenario's requests come, how long are they, and what do refused callers do?

Parts of the format that `scenario` puts together: each is checked once and then immutable. Times in
ms are patience, times in s are moments and spans; moments count from the end of the warm-up. Rates
are requests a second over all gateways, lengths are tokens.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Rate = Annotated[float, Field(ge=0, le=10_000_000)]
Moment = Annotated[float, Field(ge=0, le=10_000_000)]
Span = Annotated[float, Field(gt=0, le=10_000_000)]
Length = Annotated[int, Field(ge=1, le=1_048_576)]
Share = Annotated[float, Field(gt=0, le=1_000_000)]
Pause = Annotated[float, Field(ge=0, le=10_000_000)]
Period = Annotated[float, Field(ge=0.001, le=10_000_000)]
Factor = Annotated[float, Field(gt=0, le=1_000_000)]


def listed(value: Any) -> Any:
    """Lists are kept as tuples (immutable)."""
    return tuple(value) if isinstance(value, list) else value


class Part(BaseModel):
    """Base of every part: unknown names are refused, and text is no number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class BandPart(Part):
    share: Share = Field(description="Share of the requests relative to the other bands.")
    low: Length = Field(description="Shortest, in tokens.")
    high: Length = Field(description="Longest, both ends included; uniform between.")

    @model_validator(mode="after")
    def _ascends(self) -> BandPart:
        if self.high < self.low:
            raise ValueError(f"high is {self.high}, below low ({self.low})")
        return self


class LogNormalPart(Part):
    mu: float = Field(ge=-20, le=20, description="Mean of the logarithm.")
    sigma: float = Field(ge=0, le=10, description="Standard deviation of the logarithm.")


class ExponentialPart(Part):
    mean: float = Field(gt=0, le=1_048_576, description="Mean length, in tokens.")


class LengthsPart(Part):
    """Exactly one way to draw a length; drawn ones are cut to `at_least` and `at_most`."""

    fixed: Length | None = Field(default=None, description="Every row has this length.")
    bands: Annotated[tuple[BandPart, ...], BeforeValidator(listed)] | None = Field(
        default=None, description="Uniform within bands, each with its share."
    )
    lognormal: LogNormalPart | None = Field(default=None, description="Log-normal lengths.")
    exponential: ExponentialPart | None = Field(default=None, description="Exponential lengths.")
    column: str | None = Field(
        default=None, description='Column of the trace that holds lengths; `""`: its second.'
    )
    at_least: Length = Field(default=1, description="Shorter ones become this long.")
    at_most: Length | None = Field(
        default=None, description="Longer ones are cut to this; unset, they are sent as drawn."
    )

    @model_validator(mode="after")
    def _one_way(self) -> LengthsPart:
        ways = ("fixed", "bands", "lognormal", "exponential", "column")
        given = [way for way in ways if getattr(self, way) is not None]
        if len(given) != 1 or self.bands == ():
            said = " and ".join(given) or "nothing"
            raise ValueError(f"needs exactly one of {', '.join(ways)}; has {said}")
        if self.at_most is not None and self.at_most < self.at_least:
            raise ValueError(f"at_most is {self.at_most}, below at_least ({self.at_least})")
        return self


class StepPart(Part):
    from_s: Moment = Field(description="From then on the rate is another.")
    rate: Rate = Field(description="Requests a second.")


class BurstsPart(Part):
    every_s: Period = Field(description="From one burst's start to the next one's.")
    last_s: Span = Field(description="How long each lasts.")
    factor: Rate = Field(description="What the rate is multiplied with meanwhile.")
    first_s: Moment = Field(default=0, description="When the first one starts.")

    @model_validator(mode="after")
    def _bursts_end(self) -> BurstsPart:
        if self.last_s > self.every_s:
            raise ValueError(f"last_s is {self.last_s:g}, longer than every_s ({self.every_s:g})")
        return self


class ArrivalsPart(Part):
    """When requests come: at a rate (`poisson`, `gamma`), when the last one was answered
    (`closed`), or as recorded (`trace`)."""

    process: Literal["poisson", "gamma", "closed", "trace"] = Field(
        default="poisson", description="How requests follow each other."
    )
    rate: Rate | None = Field(default=None, description="Requests a second, on average.")
    cv: float = Field(
        default=1, gt=0, le=100, description="Coefficient of variation of `gamma` intervals."
    )
    steps: Annotated[tuple[StepPart, ...], BeforeValidator(listed)] = Field(
        default=(), description="Other rates, each from a moment on."
    )
    bursts: BurstsPart | None = Field(default=None, description="Regular bursts.")
    clients: int = Field(
        default=1, ge=1, le=1_000_000, description="Callers of a `closed` loop, one request each."
    )
    think_s: Pause = Field(default=0, description="Pause of a `closed` caller after an answer.")
    file: str | None = Field(
        default=None,
        description="A `trace`: CSV with a header, or one JSON object a line; relative to this "
        "file.",
    )
    time_column: str = Field(
        default="", description='Its column of times (date and time, or seconds); `""`: its first.'
    )
    speed: Factor = Field(
        default=1, description="How many times faster than recorded a `trace` is replayed."
    )

    @model_validator(mode="after")
    def _complete(self) -> ArrivalsPart:
        timed = self.process in ("poisson", "gamma")
        for name, needed in (("rate", timed), ("file", self.process == "trace")):
            if needed and getattr(self, name) is None:
                raise ValueError(f"{self.process} needs {name}")
            if not needed and getattr(self, name) is not None:
                raise ValueError(f"{self.process} has no {name}")
        for name in ("steps", "bursts"):
            if getattr(self, name) and not timed:
                raise ValueError(f"{self.process} has no {name}")
        moments = [step.from_s for step in self.steps]
        if moments != sorted(set(moments)):
            raise ValueError("steps must ascend in from_s")
        return self


class RetryPart(Part):
    """What callers do when they are refused, or have waited in vain."""

    attempts: int = Field(default=1, ge=1, le=100, description="Tries in all, the first included.")
    backoff_ms: Pause = Field(
        default=100, description="Pause before the second try; doubles with each further one."
    )
    most_ms: Pause = Field(default=10_000, description="Longest pause.")
    jitter: bool = Field(
        default=True, description="Whether the pause is drawn between 0 and what it would be."
    )
    retry_after: bool = Field(
        default=True, description="Whether a `Retry-After` is waited for; else it is not looked at."
    )
