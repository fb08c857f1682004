"""Which policy answers each question of one model's scheduling, by name.

What users write under `policies`; the names are those of `routers.policies.registry`.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from routers.policies.registry import KINDS
from yaml_document.section import Section, listed


def _known(kind: str, name: str) -> str:
    """Raises ValueError for a name that the registry does not have."""
    if name not in KINDS[kind]:
        raise ValueError(f"must be one of {', '.join(KINDS[kind])}, got {name!r}")
    return name


def _names(kind: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": list(KINDS[kind])})


OrderName = Annotated[str, AfterValidator(partial(_known, "order")), _names("order")]
BatchingName = Annotated[str, AfterValidator(partial(_known, "batching")), _names("batching")]
PlacementName = Annotated[str, AfterValidator(partial(_known, "placement")), _names("placement")]
HedgingName = Annotated[str, AfterValidator(partial(_known, "hedging")), _names("hedging")]
EdgesName = Annotated[str, AfterValidator(partial(_known, "edges")), _names("edges")]
AdmissionName = Annotated[str, AfterValidator(partial(_known, "admission")), _names("admission")]
PreemptionName = Annotated[str, AfterValidator(partial(_known, "preemption")), _names("preemption")]


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    """Raises ValueError where one is named twice."""
    if len(set(names)) < len(names):
        raise ValueError(f"names one twice: {', '.join(names)}")
    return names


class PolicySettings(Section):
    """The questions that several policies answer."""

    order: OrderName = Field(
        default="sfq",
        description="Whose turn it is: by shares, start-time fair queueing of device seconds "
        "(`sfq`), virtual token counters (`vtc`) or deficit round robin (`drr`); without shares "
        "between tenants, the earliest deadline (`edf`) or who came first (`fifo`).",
    )
    batching: BatchingName = Field(
        default="ragged",
        description="Which rows form a batch: of like lengths, with riders where they cost less "
        "than they save (`ragged`), of one length interval (`bucket`), or of any lengths in order "
        "(`arrival`). Models that generate are not batched here.",
    )
    placement: PlacementName = Field(
        default="finish_first",
        description="Which replica is asked first: the one that is predicted to finish first, the "
        "`least_loaded`, by Prequal's rule (`prequal`), or in turn (`round_robin`).",
    )
    admission: Annotated[
        tuple[AdmissionName, ...], BeforeValidator(listed), AfterValidator(_each_once)
    ] = Field(
        default=("limit", "feasibility", "best_effort_capacity", "codel"),
        description="Who may turn requests away, in this order: by a learnt limit of requests in "
        "hand (`limit`), a forecast of the wait (`feasibility`), what late work idle moments could "
        "serve (`best_effort_capacity`), standing queues (`codel`); what each does, and whether "
        "that is only counted, `admission` says. `[]`: nobody but the bounds of the queue.",
    )
    hedging: HedgingName = Field(
        default="quantile",
        description="After how long a batch or first token has taken long, so that `hedge` sends a "
        "copy: beyond a quantile of what its length interval's take over their predictions "
        "(`quantile`), or beyond a multiple of its own prediction (`multiple`).",
    )
    edges: EdgesName = Field(
        default="seconds",
        description="Where length intervals end whose edges `lengths.buckets` does not list: where "
        "the predicted seconds of device time are least (`seconds`), the padding is (`padding`), "
        "or each has as many rows as the others (`quantiles`).",
    )
    preemption: PreemptionName = Field(
        default="least_urgent",
        description="Which work that was sent gives its place to what is more urgent: of staged "
        "batches the least urgent; of streams, where `queue.preempt_streams` allows it, the last "
        "begun of the least urgent priority (`least_urgent`) or of all that are less urgent "
        "(`least_work_lost`); or no work (`none`).",
    )
