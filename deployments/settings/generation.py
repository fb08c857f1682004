"""How a model that generates is shared: what tokens weigh, what is expected of outputs, where
prompts go.

Holds for `task: generate`, whose replicas batch by themselves and hold tokens instead of batches.
Everything that is learnt has a fixed value beside it; what is unset is learnt. Unit: tokens.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from yaml_document.section import Section, off_is_a_word

_MOST_TOKENS = 1_048_576


class PredictSettings(Section):
    output_tokens: int | None = Field(
        default=None,
        ge=1,
        le=_MOST_TOKENS,
        description="Output tokens expected of each request, at most its `max_tokens`; unset, "
        "learnt from the outputs of its tenant and of prompts as long.",
    )
    reserve_quantile: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="Room is kept in a replica's cache for this quantile of the outputs so far; "
        "1 keeps it for `max_tokens`.",
    )
    tokens_per_s: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="Weighted tokens a second that a full replica serves; unset, learnt.",
    )
    prompt_tokens_per_s: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="Prompt tokens a second that a replica reads; unset, learnt from the times to "
        "the first token.",
    )


class PromptSettings(Section):
    long_tokens: int = Field(
        default=2048,
        ge=1,
        le=_MOST_TOKENS,
        description="A prompt of which more tokens than this have to be read is a long one.",
    )
    max_long_tokens: int | None = Field(
        default=4096,
        ge=0,
        le=_MOST_TOKENS,
        description="Tokens of long prompts that a replica may be reading at once, others wait "
        "for their turn; one such prompt it may always; unset, no bound.",
    )


class AffinitySettings(Section):
    mode: Annotated[Literal["off", "session", "prefix"], BeforeValidator(off_is_a_word)] = Field(
        default="prefix",
        description="Which replica a request prefers, while that costs less than it saves: none "
        "(`off`), the one that its session used last (`session`), or besides the one that has "
        "read most of its prompt before (`prefix`).",
    )
    max_blocks: int = Field(
        default=262_144,
        ge=1,
        le=16_777_216,
        description="Blocks of prompts that a gateway remembers for all replicas of the model.",
    )


class GenerationSettings(Section):
    input_weight: float = Field(
        default=1,
        gt=0,
        le=1000,
        description="What a prompt's token counts for in fairness, unless it was in the cache.",
    )
    output_weight: float = Field(
        default=2, gt=0, le=1000, description="What an output token counts for in fairness."
    )
    max_output_tokens: int | None = Field(
        default=None,
        ge=1,
        le=_MOST_TOKENS,
        description="Output tokens of a request that does not say how many it wants at most; "
        "unset, what its prompt leaves of `lengths.max`.",
    )
    predict: PredictSettings = Field(
        default_factory=PredictSettings,
        description="What requests are expected to take; learnt where unset.",
    )
    prompts: PromptSettings = Field(
        default_factory=PromptSettings, description="How long prompts share a replica with others."
    )
    share_prefixes: bool = Field(
        default=False,
        description="Whether tenants share what the engine keeps of prompts that begin alike. "
        "Then how soon a token comes, and `cached_tokens`, tell a tenant what others have asked.",
    )
    affinity: AffinitySettings = Field(
        default_factory=AffinitySettings, description="Which replica a request prefers."
    )
