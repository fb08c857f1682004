"""The settings of one model's scheduling: batches, queue, policies, hedges, slow and lost replicas.

These are the settings of `routers/` in the form that users write; `replica/scheduling.py`
translates them. Every controller can be turned off; the numbers that it works with are constants of
`routers/api/settings.py`. Each gateway decides by itself, so counts are those of one gateway. A row
that was on a replica when it was lost is a suspect and runs alone; with a second lost replica it is
quarantined: refused (`crashes`).
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from deployments.settings.gone import GONE
from routers.policies.registry import KINDS, fault_of, modeless
from yaml_document.section import Section, listed, off_is_a_word, wrong


def _mode(value: Any) -> Any:
    """The mode. Raises an error for the section of fields that older files have here."""
    if isinstance(value, dict):
        raise wrong("is a mode and no section any more; must be off, observe or enforce")
    return off_is_a_word(value)


def _has_a_mode(name: str) -> str:
    known = (*WITH_PARAMETERS, *modeless())
    if name not in known:
        raise ValueError(f"must be one of {', '.join(known)}, got {name!r}")
    return name


WITH_PARAMETERS = ("feasibility", "codel", "limit")
AdmissionMode = Annotated[Literal["off", "observe", "enforce"], BeforeValidator(_mode)]
AdmissionModes = dict[Annotated[str, AfterValidator(_has_a_mode)], AdmissionMode]


class BatchBounds(Section):
    gone = GONE["batch"]
    max_size: int = Field(default=32, ge=1, le=65_536, description="Most rows in a batch.")
    max_tokens: int = Field(
        default=8192,
        ge=1,
        le=1_073_741_824,
        description="Most tokens in a batch, padding included. A longer row runs alone.",
    )


class BatchSettings(BatchBounds):
    max_slo_share: float = Field(
        default=0.45,
        gt=0,
        le=1,
        description="A batch of more than one row may be predicted to take at most this share of "
        "`slo.latency_ms`.",
    )
    hold: Literal["never", "auto"] = Field(
        default="never",
        description="Whether an idle replica may wait for a batch to fill: `never`, or (`auto`) "
        "while the rows' deadlines leave time and enough rows are expected to arrive.",
    )


class QueueSettings(Section):
    gone = GONE["queue"]
    max_rows: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Most rows that may wait at one gateway; further rows are refused. If the "
        "queue is full, a row of a tenant below its share by weight takes the place of a row of "
        "the tenant furthest above its share. Unset: as many rows as the running replicas can "
        "answer within the model's timeout, by their measured speed and beside the work of other "
        "gateways, from 256 to 65,536; for a model that generates, judged by how long recent "
        "requests took. Before anything is measured, and as the most rows of one request: 2,048.",
    )
    preempt_streams: bool = Field(
        default=False,
        description="For replicas that stream: whether a running request that has produced no "
        "token yet may be stopped and queued again, to make room for more urgent work. "
        "`policies.preemption` decides which request.",
    )


class HedgeSettings(Section):
    gone = GONE["hedge"]
    mode: Annotated[Literal["off", "hedge", "tied"], BeforeValidator(off_is_a_word)] = Field(
        default="hedge",
        description="Whether a batch that takes long, or a request to generate whose first token "
        "does, gets a copy on another replica (`hedge`). `tied`: besides that, a batch that is "
        "staged behind another one gets a copy at once.",
    )


class SilenceSettings(Section):
    gone = GONE["silence"]
    mode: Annotated[Literal["off", "suspend"], BeforeValidator(off_is_a_word)] = Field(
        default="suspend",
        description="Whether a replica that owes an answer and has gone silent gets no new work "
        "until it sends a message again (`suspend`). Its rows that may run twice (`retry`) are "
        "then sent once to another replica.",
    )


class OutlierSettings(Section):
    gone = GONE["outliers"]
    mode: Annotated[Literal["off", "eject"], BeforeValidator(off_is_a_word)] = Field(
        default="eject",
        description="Whether a replica that is slower than the others is ejected, so that it gets "
        "no work (`eject`), until a probe (a batch or a first token) shows that it is as fast "
        "again.",
    )


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
        description="A tenant with whose inputs so many replicas were lost within 10 minutes gets "
        "429 from the model until the first loss is older than that. 0: never. A loss counts if "
        "the input was quarantined for it, or if the inputs of one unanswered request are the only "
        "possible cause left.",
    )


def _known(kind: str, name: str) -> str:
    """Raises ValueError for a name that the registry does not have, or whose class is not whole."""
    if fault := fault_of(kind, name):
        raise ValueError(fault)
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
        "costs less than it saves (`ragged`); rows of one bucket (`bucket`); rows of any length in "
        "the order of their turns (`arrival`); or rows of one bucket once there are three quarters "
        "of a full batch, or one of them has waited for half of the time that it may (`full`). "
        "Engines of models that generate batch by themselves.",
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
        "(`codel`). Their modes are in `admission`. `[]`: only the queue's bounds "
        "refuse.",
    )
    hedging: HedgingName = Field(
        default="quantile",
        description="When does a batch or first token take so long that `hedge` sends a copy? When "
        "its time, relative to its prediction, is above the 95th percentile of its length "
        "interval (`quantile`), or above 2 (`multiple`).",
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
