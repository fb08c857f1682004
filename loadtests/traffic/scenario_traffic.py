"""The parts of the scenario format that describe traffic: when requests are sent, how long they
are, and what refused callers do.

`scenario` puts the parts together; each is checked once and then immutable. Points in time are
seconds from the end of the warm-up. Rates are requests a second over all gateways; lengths are
tokens.
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
    share: Share = Field(description="The band's share of lengths, relative to the other bands'.")
    low: Length = Field(description="Shortest length in the band.")
    high: Length = Field(description="Longest length in the band.")

    @model_validator(mode="after")
    def _ascends(self) -> BandPart:
        if self.high < self.low:
            raise ValueError(f"high is {self.high}, below low ({self.low})")
        return self


class LogNormalPart(Section):
    mu: float = Field(ge=-20, le=20, description="Mean of the logarithm.")
    sigma: float = Field(ge=0, le=10, description="Standard deviation of the logarithm.")


class ExponentialPart(Section):
    mean: float = Field(gt=0, le=1_048_576, description="Mean length.")


class EmpiricalPart(Section):
    """Observed lengths: a list, or a column of a CSV file with a header."""

    lengths: Annotated[tuple[Length, ...], BeforeValidator(listed)] = Field(
        default=(), description="The lengths; not with `file`."
    )
    counts: Annotated[tuple[Share, ...], BeforeValidator(listed)] = Field(
        default=(),
        description="How often each of `lengths` was observed; unset, all equally often.",
    )
    file: str | None = Field(
        default=None,
        description="CSV file with a header and a line for each request, instead of `lengths`; "
        "relative to this file.",
    )
    column: str = Field(
        default="", description='The column of lengths in `file`; `""`: the first column.'
    )

    @model_validator(mode="after")
    def _one_source(self) -> EmpiricalPart:
        if bool(self.lengths) == (self.file is not None):
            raise ValueError("needs lengths or a file, and not both")
        if self.counts and len(self.counts) != len(self.lengths):
            raise ValueError(f"has {len(self.lengths)} lengths and {len(self.counts)} counts")
        return self


class LengthsPart(Section):
    """A distribution of lengths, given in exactly one way. Drawn lengths below `at_least` or above
    `at_most` are set to that bound."""

    fixed: Length | None = Field(default=None, description="Every row has this length.")
    bands: Annotated[tuple[BandPart, ...], BeforeValidator(listed)] | None = Field(
        default=None, description="Bands of lengths; lengths within a band are equally likely."
    )
    lognormal: LogNormalPart | None = Field(
        default=None, description="Log-normally distributed lengths."
    )
    exponential: ExponentialPart | None = Field(
        default=None, description="Exponentially distributed lengths."
    )
    empirical: EmpiricalPart | None = Field(
        default=None, description="Lengths drawn from observed ones."
    )
    column: str | None = Field(
        default=None,
        description='Column of the trace of `arrivals` that has the lengths; `""`: the one of a '
        "known format, else the second column, for `output` the third.",
    )
    at_least: Length = Field(default=1, description="Shorter lengths are raised to this.")
    at_most: Length | None = Field(
        default=None, description="Longer lengths are lowered to this; unset, there is no bound."
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
    from_s: Moment = Field(description="When the rate begins to change.")
    rate: Rate = Field(description="The new rate, in requests a second.")
    ramp_s: Pause = Field(
        default=0,
        description="How long the rate takes to reach the new one, linearly; 0: it changes at "
        "once.",
    )


class BurstsPart(Section):
    every_s: Period = Field(description="Time from the start of one burst to that of the next.")
    last_s: Span = Field(description="How long a burst lasts.")
    factor: Rate = Field(description="Factor by which a burst multiplies the rate.")
    first_s: Moment = Field(default=0, description="When the first burst starts.")

    @model_validator(mode="after")
    def _bursts_end(self) -> BurstsPart:
        if self.last_s > self.every_s:
            raise ValueError(f"last_s is {self.last_s:g}, longer than every_s ({self.every_s:g})")
        return self


class ArrivalsPart(Section):
    """When requests are sent: at a rate (`constant`, `poisson`, `gamma`, `weibull`), after the
    answer to a caller's last request (`closed`), or as recorded (`trace`)."""

    process: Literal["poisson", "constant", "gamma", "weibull", "closed", "trace"] = Field(
        default="poisson",
        description="The arrival process. `poisson`, `gamma` and `weibull` draw the intervals "
        "between requests; with `constant` these are equal. With `closed`, each caller sends its "
        "next request after the answer to the last. `trace` replays `file`.",
    )
    rate: Rate | None = Field(
        default=None,
        description="Mean requests a second; required except for `closed` and `trace`.",
    )
    cv: float = Field(
        default=1,
        gt=0,
        le=100,
        description="Coefficient of variation of `gamma` and `weibull` intervals. 1 is a Poisson "
        "process; above 1, requests come in clusters.",
    )
    steps: Annotated[tuple[StepPart, ...], BeforeValidator(listed)] = Field(
        default=(), description="Changes of `rate`, in the order of their times."
    )
    bursts: BurstsPart | None = Field(
        default=None, description="Bursts that repeat at regular intervals."
    )
    clients: int = Field(
        default=1,
        ge=1,
        le=1_000_000,
        description="Callers of a `closed` process; each has one request at a time.",
    )
    think_s: Pause = Field(
        default=0,
        description="Time that a `closed` caller waits between an answer and its next request.",
    )
    file: str | None = Field(
        default=None,
        description="File of a `trace`, relative to this file: CSV with a header, or one JSON "
        "object a line (`.jsonl`). The formats of Azure LLM inference, BurstGPT and Mooncake are "
        "recognised by their columns.",
    )
    time_column: str = Field(
        default="",
        description='Column of a `trace` with the times (date and time, or seconds); `""`: the '
        "first.",
    )
    smear_s: Pause | None = Field(
        default=None,
        description="Each time of a `trace` is delayed at random by up to so much, so that "
        "requests recorded in the same second are not sent at once; unset, the resolution of a "
        "known format's times.",
    )
    speed: Factor = Field(
        default=1, description="How many times faster than recorded a `trace` is replayed."
    )
    plus: Annotated[tuple[ArrivalsPart, ...], BeforeValidator(listed)] = Field(
        default=(), description="Further arrivals that are sent in addition to these."
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
            raise ValueError("an item of plus must not be closed and must not have a plus itself")
        return self

    @property
    def sources(self) -> tuple[ArrivalsPart, ...]:
        """These arrivals and those in `plus`."""
        return (self, *self.plus)


class RetryPart(Section):
    """What callers do after a refusal or a timeout."""

    attempts: int = Field(
        default=1, ge=1, le=100, description="Attempts in all, the first included; 1: no retry."
    )
    backoff_ms: Pause = Field(
        default=100,
        description="Backoff before the second attempt; it doubles before each further one.",
    )
    max_ms: Pause = Field(default=10_000, description="Longest backoff.")
    jitter: bool = Field(
        default=True,
        description="Whether the backoff is drawn uniformly between 0 and its full length.",
    )
    retry_after: bool = Field(
        default=True, description="Whether callers wait for as long as a `Retry-After` says."
    )
