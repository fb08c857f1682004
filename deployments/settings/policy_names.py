"""`policies`: which policy answers each question of one model's scheduling.

The names are those of `routers.policies.registry`.
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
    """The names as they are. Raises ValueError if one is there twice."""
    if len(set(names)) < len(names):
        raise ValueError(f"has a name twice ({', '.join(names)}); must have each once")
    return names


class PolicySettings(Section):
    """For each question, the name of the policy that answers it."""

    order: OrderName = Field(
        default="sfq",
        description="Which flow's turn is it? With shares between tenants: start-time fair "
        "queueing of device seconds (`sfq`), virtual token counters (`vtc`), or deficit round "
        "robin (`drr`). Without shares: the earliest deadline (`edf`) or the first arrival "
        "(`fifo`).",
    )
    batching: BatchingName = Field(
        default="ragged",
        description="Which rows form a batch? Rows of similar lengths, and others if adding them "
        "costs less than it saves (`ragged`); rows of one bucket (`bucket`); or rows of any length "
        "in the order of their turns (`arrival`). Engines of models that generate batch by "
        "themselves.",
    )
    placement: PlacementName = Field(
        default="finish_first",
        description="Which replica is asked first? The one predicted to finish first "
        "(`finish_first`), the one with the least load (`least_loaded`), the one that Prequal's "
        "rule chooses (`prequal`), or each in turn (`round_robin`).",
    )
    admission: Annotated[
        tuple[AdmissionName, ...], BeforeValidator(listed), AfterValidator(_each_once)
    ] = Field(
        default=("limit", "feasibility", "best_effort_capacity", "codel"),
        description="Which controllers may refuse requests, and in which order? A limit on "
        "requests waiting and running (`limit`), a forecast of the queue wait (`feasibility`), the "
        "late work that idle moments could serve (`best_effort_capacity`), standing queues "
        "(`codel`). Their fields and modes are in `admission`. `[]`: only the queue's bounds "
        "refuse.",
    )
    hedging: HedgingName = Field(
        default="quantile",
        description="When does a batch or first token take so long that `hedge` sends a copy? When "
        "its time, relative to its prediction, is above a quantile of its length interval "
        "(`quantile`), or above a fixed multiple (`multiple`).",
    )
    edges: EdgesName = Field(
        default="seconds",
        description="Where are the edges of buckets that `lengths.buckets` does not list? Where "
        "they minimise predicted device seconds (`seconds`) or padding (`padding`), or give all "
        "buckets equally many rows (`quantiles`).",
    )
    preemption: PreemptionName = Field(
        default="least_urgent",
        description="Which dispatched work is preempted for more urgent work? `least_urgent` and "
        "`least_work_lost`: the least urgent staged batch; and among streams, if "
        "`queue.preempt_streams` allows it, the last begun of the least urgent priority "
        "(`least_urgent`) or of all that are less urgent (`least_work_lost`). `none`: no work.",
    )
