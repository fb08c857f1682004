"""`crashes`: what happens to rows that crash or hang their replicas, and to their senders.

A row that was on a replica when the replica was lost is a suspect. Suspects run alone until they
are answered. A row that was on a second replica that was lost is quarantined: it is refused.
"""

from __future__ import annotations

from pydantic import Field

from deployments.settings.gone import GONE
from yaml_document.section import Section


class CrashSettings(Section):
    gone = GONE["crashes"]
    hold_s: float = Field(
        default=30,
        ge=0,
        le=86_400,
        description="Longest time that a suspect row (one that was on a replica when the replica "
        "was lost) waits for a second replica, before it is tried on the only one left; never more "
        "than half of its remaining time. For a model that generates: longest time that a suspect "
        "prompt waits for the first tokens of the suspect prompts before it. 0: no wait.",
    )
    tenant_budget: int = Field(
        default=8,
        ge=0,
        le=1_000_000,
        description="A tenant with whose inputs so many replicas were lost within `refuse_s` gets "
        "429 from the model until the first loss is older than that. 0: never. A loss counts if "
        "the input was quarantined for it, or if the inputs of one unanswered request are the only "
        "possible cause left.",
    )
