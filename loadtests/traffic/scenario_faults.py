"""The parts of the scenario format that describe the simulated device and its faults.

Only `headrace simulate` uses them, since a load generator cannot do most of this to a real server.
Factors multiply a batch's time. Points in time are seconds from the end of the warm-up.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from loadtests.traffic.scenario_traffic import Factor, Moment, Pause, Period, Span
from yaml_document.section import Section, listed

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


class HiccupsPart(Section):
    share: float = Field(ge=0, le=1, description="Share of batches that hiccup.")
    factor: Factor = Field(description="Factor by which a hiccup multiplies a batch's time.")


class SlowPart(Section):
    replica: int = Field(ge=0, description="Number of the replica, from 0.")
    factor: Factor = Field(description="Factor by which its batches take longer.")
    from_s: Moment = Field(default=0, description="When it becomes slow.")
    to_s: Moment | None = Field(
        default=None, description="When it becomes normal again; unset, never."
    )


class DeathPart(Section):
    replica: int = Field(ge=0, description="Number of the replica, from 0.")
    at_s: Moment = Field(description="When it dies.")
    back_after_s: Span | None = Field(
        default=None, description="Time until another replaces it; unset, none does."
    )
    hangs: bool = Field(
        default=False,
        description="It hangs instead of dying: it stops answering, and dies once `hang_limit_s` "
        "of the settings is over.",
    )


class ChaosPart(Section):
    """Deaths of random replicas at random times."""

    every_s: Period = Field(description="Mean time between deaths.")
    back_after_s: Span = Field(default=5, description="Time until another replaces a dead replica.")
    hanging: float = Field(
        default=0, ge=0, le=1, description="Share of the replicas that hang instead of dying."
    )


class JoinPart(Section):
    at_s: Moment = Field(description="When they are added.")
    count: int = Field(default=1, ge=1, le=100_000, description="How many are added.")


class RampPart(Section):
    last_s: Span = Field(description="How long a replica is slow after its start.")
    factor: Factor = Field(
        description="Factor by which its first batches take longer; falls linearly to 1."
    )


class FaultsPart(Section):
    """What the simulated devices do."""

    noise: float = Field(
        default=0,
        ge=0,
        le=2,
        description="Sigma of the log-normal factor on batch times, whose median is 1.",
    )
    hiccups: HiccupsPart | None = Field(
        default=None, description="Single batches that take longer."
    )
    slow: Annotated[tuple[SlowPart, ...], BeforeValidator(listed)] = Field(
        default=(), description="Replicas that are slow for a time."
    )
    deaths: Annotated[tuple[DeathPart, ...], BeforeValidator(listed)] = Field(
        default=(), description="Replicas that die or hang at given times."
    )
    chaos: ChaosPart | None = Field(
        default=None, description="Random replicas that die or hang at random times."
    )
    failing_rows: float = Field(
        default=0,
        ge=0,
        le=1,
        description="Share of rows on which the model fails, drawn anew each time that a row runs.",
    )
    slow_start: RampPart | None = Field(
        default=None, description="Replicas that start during the run are slow at first."
    )
    detect_s: Pause = Field(
        default=0.5, description="Time until gateways notice that a replica is dead."
    )


class EnginePart(Section):
    """An engine that batches by itself, step by step. A step in which N sequences get a token and P
    tokens of prompts are read takes base_ms + per_sequence_ms · N + per_token_us · P."""

    base_ms: Pause = Field(default=8, description="Time of a step.")
    per_sequence_ms: Pause = Field(
        default=0.1, description="Added time for each sequence that gets a token in the step."
    )
    per_token_us: Pause = Field(
        default=50, description="Added time for each token of a prompt that the step reads."
    )
    cache_tokens: Count = Field(
        default=120_000, description="Tokens in a replica's key-value cache, at most."
    )
    max_sequences: Count = Field(
        default=128, description="Sequences that a replica runs at once, at most."
    )
    step_tokens: Count = Field(default=2048, description="Tokens in a step, at most.")
    chunk_tokens: Count | None = Field(
        default=None,
        description="Tokens of one prompt in a step, at most (chunked prefill); unset, as many as "
        "the step has room for.",
    )
    block_tokens: Count = Field(
        default=16,
        description="Tokens in a block of the cache; prompts with the same beginning share whole "
        "blocks.",
    )


class DevicePart(Section):
    """A device on which a batch of B rows, padded to L tokens, takes
    base_ms + per_request_ms · B + per_token_us · B · L."""

    base_ms: Pause = Field(default=0, description="Time of each batch.")
    per_request_ms: Pause = Field(default=0, description="Added time for each row.")
    per_token_us: Pause = Field(
        default=0, description="Added time for each token, padding included."
    )
