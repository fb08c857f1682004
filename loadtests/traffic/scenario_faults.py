"""What breaks during a scenario, and the simulated device.

Parts of the scenario format for `headrace simulate`; a load generator cannot do most of it to a
real server. Factors multiply a batch's time; moments count from the end of the warm-up, in seconds.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from loadtests.traffic.scenario_traffic import Factor, Moment, Pause, Period, Span
from yaml_document.section import Section, listed

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


class HiccupsPart(Section):
    share: float = Field(ge=0, le=1, description="Share of the batches.")
    factor: Factor = Field(description="How many times longer they take.")


class SlowPart(Section):
    replica: int = Field(ge=0, description="Which one, from 0.")
    factor: Factor = Field(description="How many times longer its batches take.")
    from_s: Moment = Field(default=0, description="From when on.")
    to_s: Moment | None = Field(default=None, description="Until when; unset, to the end.")


class DeathPart(Section):
    replica: int = Field(ge=0, description="Which one, from 0.")
    at_s: Moment = Field(description="When.")
    back_after_s: Span | None = Field(
        default=None, description="When another takes its place; unset, never."
    )
    hangs: bool = Field(
        default=False, description="It stops answering instead, until `hang_limit_s` is over."
    )


class ChaosPart(Section):
    """Deaths at random moments, of random replicas."""

    every_s: Period = Field(description="Mean time between deaths.")
    back_after_s: Span = Field(default=5, description="When another takes its place.")
    hanging: float = Field(default=0, ge=0, le=1, description="Share that hangs instead of dying.")


class JoinPart(Section):
    at_s: Moment = Field(description="When.")
    count: int = Field(default=1, ge=1, le=100_000, description="How many.")


class RampPart(Section):
    last_s: Span = Field(description="How long a replica that has just started is slow.")
    factor: Factor = Field(description="How many times slower at first; falls to 1 evenly.")


class FaultsPart(Section):
    """What the simulated devices do."""

    noise: float = Field(
        default=0, ge=0, le=2, description="Sigma of the log-normal noise on batch times; median 1."
    )
    hiccups: HiccupsPart | None = Field(default=None, description="Some batches take longer.")
    slow: Annotated[tuple[SlowPart, ...], BeforeValidator(listed)] = Field(
        default=(), description="Single replicas that are slow."
    )
    deaths: Annotated[tuple[DeathPart, ...], BeforeValidator(listed)] = Field(
        default=(), description="Single replicas that die or hang."
    )
    chaos: ChaosPart | None = Field(default=None, description="Deaths at random.")
    failing_rows: float = Field(
        default=0,
        ge=0,
        le=1,
        description="Share of the rows that the model fails on, drawn anew each time one runs.",
    )
    slow_start: RampPart | None = Field(
        default=None, description="Replicas that start meanwhile do so slowly."
    )
    detect_s: Pause = Field(default=0.5, description="How long until a dead replica is found out.")


class EnginePart(Section):
    """A device that batches by itself, step by step. A step of N sequences that are given a token,
    reading P tokens of prompts, takes base_ms + per_sequence_ms · N + per_token_us · P."""

    base_ms: Pause = Field(default=8, description="Each step.")
    per_sequence_ms: Pause = Field(
        default=0.1, description="Each sequence that is given a token in it."
    )
    per_token_us: Pause = Field(default=50, description="Each token of a prompt that it reads.")
    cache_tokens: Count = Field(default=120_000, description="Tokens that a replica holds at once.")
    max_sequences: Count = Field(default=128, description="Sequences that it runs at once.")
    step_tokens: Count = Field(default=2048, description="Tokens of a step at most.")
    chunk_tokens: Count | None = Field(
        default=None, description="Of one prompt in a step at most; unset, what the step has left."
    )
    block_tokens: Count = Field(
        default=16, description="Prompts that begin alike share the cache in blocks of so many."
    )


class DevicePart(Section):
    """What a batch of B rows, the longest of L tokens, takes:
    base_ms + per_request_ms · B + per_token_us · B · L."""

    base_ms: Pause = Field(default=0, description="Per batch.")
    per_request_ms: Pause = Field(default=0, description="Per row.")
    per_token_us: Pause = Field(default=0, description="Per padded token.")
