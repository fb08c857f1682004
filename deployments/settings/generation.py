"""`generation`: the weights of tokens, predictions of outputs, and the placement of prompts.

Only for `task: generate`, whose replicas batch by themselves; their capacity is counted in tokens,
not in batches. Everything that is learnt has a field for a fixed value; unset means learnt.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from yaml_document.section import Section, off_is_a_word

_MAX_TOKENS = 1_048_576


class PredictSettings(Section):
    output_tokens: int | None = Field(
        default=None,
        ge=1,
        le=_MAX_TOKENS,
        description="Output tokens that each request is predicted to take, at most its "
        "`max_tokens`. Unset: learnt from outputs of the same tenant and of prompts of similar "
        "length.",
    )
    reserve_quantile: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="For each request, room in a replica's KV cache is reserved for this quantile "
        "of the outputs so far. 1: for `max_tokens`.",
    )
    tokens_per_s: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="Weighted tokens a second that a full replica serves. Unset: learnt.",
    )
    prompt_tokens_per_s: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="Prompt tokens a second that a replica reads (prefill). Unset: learnt from the "
        "times to the first token.",
    )


class PromptSettings(Section):
    long_tokens: int = Field(
        default=2048,
        ge=1,
        le=_MAX_TOKENS,
        description="A prompt is long if more of its tokens than this must be read (are not "
        "cached).",
    )
    max_long_tokens: int | None = Field(
        default=4096,
        ge=0,
        le=_MAX_TOKENS,
        description="Tokens of long prompts that a replica may read at once; further long prompts "
        "wait. A single long prompt may always run. Unset: no bound.",
    )


class AffinitySettings(Section):
    mode: Annotated[Literal["off", "session", "prefix"], BeforeValidator(off_is_a_word)] = Field(
        default="prefix",
        description="Which replica a request prefers, as long as that costs less than it saves: "
        "none (`off`); the replica that its session used last (`session`); or that one and the one "
        "that has read most of the prompt before (`prefix`).",
    )
    max_blocks: int = Field(
        default=262_144,
        ge=1,
        le=16_777_216,
        description="Blocks of prompts that a gateway remembers, over all replicas of the model.",
    )


class GenerationSettings(Section):
    input_weight: float = Field(
        default=1,
        gt=0,
        le=1000,
        description="Weight of a prompt token in fair sharing; a token that was cached weighs "
        "nothing.",
    )
    output_weight: float = Field(
        default=2, gt=0, le=1000, description="Weight of an output token in fair sharing."
    )
    max_output_tokens: int | None = Field(
        default=None,
        ge=1,
        le=_MAX_TOKENS,
        description="Most output tokens of a request that does not set a maximum itself. Unset: "
        "`lengths.max` less its prompt.",
    )
    predict: PredictSettings = Field(
        default_factory=PredictSettings,
        description="Predictions of what requests take; learnt where unset.",
    )
    prompts: PromptSettings = Field(
        default_factory=PromptSettings,
        description="How prompts that are long share a replica with other requests.",
    )
    share_prefixes: bool = Field(
        default=False,
        description="Whether tenants share the engine's cache of prompts that begin alike. If they "
        "do, the time to the first token, and `cached_tokens`, can tell a tenant what others have "
        "asked.",
    )
    affinity: AffinitySettings = Field(
        default_factory=AffinitySettings, description="Which replica a request prefers."
    )
