"""What becomes of rows that end the replicas that run them, and of those who send them."""

from __future__ import annotations

from pydantic import Field

from yaml_document.section import Section


class CrashSettings(Section):
    hold_s: float = Field(
        default=30,
        ge=0,
        le=86_400,
        description="A row that was on a replica when that was lost waits at most this long, and "
        "half of its time, for a second replica before it is tried on the last one. Of a model "
        "that generates: for the first token of suspected prompts before it. 0: not at all.",
    )
    refuse_s: float = Field(
        default=600,
        gt=0,
        le=86_400,
        description="An input that has ended two replicas (a prompt that streams: two to five) is "
        "refused for this time (422), counted from the last of them, by every gateway.",
    )
    tenant_budget: int = Field(
        default=8,
        ge=0,
        le=1_000_000,
        description="A tenant whose inputs have ended so many replicas within `refuse_s` is "
        "refused by the model (429) until the first of them is that old; 0: never. A replica "
        "counts that a refused input has ended, or for which the inputs of one unanswered request "
        "are the only cause left.",
    )
