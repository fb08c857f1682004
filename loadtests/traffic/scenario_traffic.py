"""A scenario's traffic: when requests come, how long they are, what refused callers do.

Parts of the format that `scenario` puts together: each is checked once and then immutable. Times in
ms are patience, times in s are moments and spans; moments count from the end of the warm-up. Rates
are requests a second over all gateways, lengths are tokens.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from yaml_document.section import Section, listed

Rate = Annotated[float, Field(ge=0, le=10_000_000)]
Moment = Annotated[float, Field(ge=0, le=10_000_000)]
Span = Annotated[float, Field(gt=0, le=10_000_000)]
Length = Annotated[int, Field(ge=1, le=1_048_576)]
Share = Annotated[float, Field(gt=0, le=1_000_000)]
Pause = Annotated[float, Field(ge=0, le=10_000_000)]
Period = Annotated[float, Field(ge=0.001, le=10_000_000)]
Factor = Annotated[float, Field(gt=0, le=1_000_000)]


class BandPart(Section):
    share: Share = Field(description="Share of the requests relative to the other bands.")
    low: Length = Field(description="Shortest, in tokens.")
    high: Length = Field(description="Longest, both ends included; uniform between.")

    @model_validator(mode="after")
    def _ascends(self) -> BandPart:
        if self.high < self.low:
            raise ValueError(f"high is {self.high}, below low ({self.low})")
        return self


class LogNormalPart(Section):
    mu: float = Field(ge=-20, le=20, description="Mean of the logarithm.")
    sigma: float = Field(ge=0, le=10, description="Standard deviation of the logarithm.")


class ExponentialPart(Section):
    mean: float = Field(gt=0, le=1_048_576, description="Mean length, in tokens.")


class EmpiricalPart(Section):
    """Lengths as they were counted: a list, or a column of a CSV file with a header."""

    lengths: Annotated[tuple[Length, ...], BeforeValidator(listed)] = Field(
        default=(), description="The lengths that occur."
    )
    counts: Annotated[tuple[Share, ...], BeforeValidator(listed)] = Field(
        default=(), description="How often each of them does; unset, all as often."
    )
    file: str | None = Field(
        default=None, description="CSV with a row a request, instead; relative to this file."
    )
    column: str = Field(default="", description='Its column of lengths; `""`: its first.')

    @model_validator(mode="after")
    def _one_source(self) -> EmpiricalPart:
        if bool(self.lengths) == (self.file is not None):
            raise ValueError("needs lengths or a file, and not both")
        if self.counts and len(self.counts) != len(self.lengths):
            raise ValueError(f"has {len(self.lengths)} lengths and {len(self.counts)} counts")
        return self


class LengthsPart(Section):
    """Exactly one way to draw a length; drawn ones are cut to `at_least` and `at_most`."""

    fixed: Length | None = Field(default=None, description="Every row has this length.")
    bands: Annotated[tuple[BandPart, ...], BeforeValidator(listed)] | None = Field(
        default=None, description="Uniform within bands, each with its share."
    )
    lognormal: LogNormalPart | None = Field(default=None, description="Log-normal lengths.")
    exponential: ExponentialPart | None = Field(default=None, description="Exponential lengths.")
    empirical: EmpiricalPart | None = Field(default=None, description="Lengths as counted.")
    column: str | None = Field(
        default=None,
        description='Column of the trace that holds them; `""`: its second, for `output` its '
        "third, or the one that a known format has.",
    )
    at_least: Length = Field(default=1, description="Shorter ones become this long.")
    at_most: Length | None = Field(
        default=None, description="Longer ones are cut to this; unset, they are sent as drawn."
    )

    @model_validator(mode="after")
    def _one_way(self) -> LengthsPart:
        ways = ("fixed", "bands", "lognormal", "exponential", "empirical", "column")
        given = [way for way in ways if getattr(self, way) is not None]
        if len(given) != 1 or self.bands == ():
            said = " and ".join(given) or "nothing"
            raise ValueError(f"needs exactly one of {', '.join(ways)}; has {said}")
        if self.at_most is not None and self.at_most < self.at_least:
            raise ValueError(f"at_most is {self.at_most}, below at_least ({self.at_least})")
        return self


class StepPart(Section):
    from_s: Moment = Field(description="From then on the rate is another.")
    rate: Rate = Field(description="Requests a second.")
    ramp_s: Pause = Field(
        default=0, description="How long the rate takes to get there, evenly; 0: it jumps."
    )


class BurstsPart(Section):
    every_s: Period = Field(description="From one burst's start to the next one's.")
    last_s: Span = Field(description="How long each lasts.")
    factor: Rate = Field(description="What the rate is multiplied with meanwhile.")
    first_s: Moment = Field(default=0, description="When the first one starts.")

    @model_validator(mode="after")
    def _bursts_end(self) -> BurstsPart:
        if self.last_s > self.every_s:
            raise ValueError(f"last_s is {self.last_s:g}, longer than every_s ({self.every_s:g})")
        return self


class ArrivalsPart(Section):
    """When requests come: at a rate (`constant`, `poisson`, `gamma`, `weibull`), when the last one
    was answered (`closed`), or as recorded (`trace`)."""

    process: Literal["poisson", "constant", "gamma", "weibull", "closed", "trace"] = Field(
        default="poisson", description="How requests follow each other."
    )
    rate: Rate | None = Field(default=None, description="Requests a second, on average.")
    cv: float = Field(
        default=1,
        gt=0,
        le=100,
        description="Coefficient of variation of `gamma` and `weibull` intervals: 1 is Poisson, "
        "more comes in clumps.",
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
        description="A `trace`: CSV with a header, or one JSON object a line (`.jsonl`); relative "
        "to this file. Known by their columns: Azure LLM inference, BurstGPT, Mooncake.",
    )
    time_column: str = Field(
        default="", description='Its column of times (date and time, or seconds); `""`: its first.'
    )
    smear_s: Pause | None = Field(
        default=None,
        description="Each moment of a `trace` is moved on by up to so much, evenly, so that what "
        "was recorded in one second does not come at once; unset, what a known format's times are "
        "exact to.",
    )
    speed: Factor = Field(
        default=1, description="How many times faster than recorded a `trace` is replayed."
    )
    plus: Annotated[tuple[ArrivalsPart, ...], BeforeValidator(listed)] = Field(
        default=(), description="Further sources; what all of them send adds up."
    )

    @model_validator(mode="after")
    def _complete(self) -> ArrivalsPart:
        timed = self.process not in ("closed", "trace")
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
        for step, later in pairwise(self.steps):
            if step.from_s + step.ramp_s > later.from_s:
                raise ValueError(f"the ramp from {step.from_s:g} s on ends after the next begins")
        if any(each.process == "closed" or each.plus for each in self.plus):
            raise ValueError("what is in plus may not be closed and has no plus of its own")
        return self

    @property
    def sources(self) -> tuple[ArrivalsPart, ...]:
        """This one and what adds to it."""
        return (self, *self.plus)


class RetryPart(Section):
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
