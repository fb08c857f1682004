"""`generation`: the length of outputs, and the placement of prompts.

Only for `task: generate`, whose replicas batch by themselves; their capacity is counted in tokens,
not in batches. How long outputs get and how fast a replica is are learnt.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from deployments.settings.gone import GONE
from yaml_document.section import Section, off_is_a_word

_MAX_TOKENS = 1_048_576


class PromptSettings(Section):
    gone = GONE["prompts"]
    max_long_tokens: int | None = Field(
        default=4096,
        ge=0,
        le=_MAX_TOKENS,
        description="Tokens of long prompts (of which more than 2,048 tokens are not cached) that "
        "a replica may read at once; further long prompts wait. A single long prompt may always "
        "run. Unset: no bound.",
    )


class AffinitySettings(Section):
    gone = GONE["affinity"]
    mode: Annotated[Literal["off", "session", "prefix"], BeforeValidator(off_is_a_word)] = Field(
        default="prefix",
        description="Which replica a request prefers, as long as that costs less than it saves: "
        "none (`off`); the replica that its session used last (`session`); or that one and the one "
        "that has read most of the prompt before (`prefix`).",
    )


class GenerationSettings(Section):
    gone = GONE["generation"]
    max_output_tokens: int | None = Field(
        default=None,
        ge=1,
        le=_MAX_TOKENS,
        description="Most output tokens of a request that does not set a maximum itself. Unset: "
        "`lengths.max` less its prompt.",
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
