"""The settings of one model's scheduling: batches, queue, hedges, slow and lost replicas.

These are the settings of `routers/` in the form that users write; `replica/scheduling.py`
translates them. Everything that decides can be turned off; its numbers are constants of
`routers/api/settings.py`. Each gateway decides by itself, so counts are those of one gateway. A row
that was on a replica when it was lost is a suspect and runs alone; with a second lost replica it is
quarantined: refused (`crashes`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from deployments.settings.gone import GONE
from yaml_document.section import Section, off_is_a_word, wrong


def _mode(value: Any) -> Any:
    """The mode. Raises an error for the section of fields that older files have here."""
    if isinstance(value, dict):
        raise wrong("is a mode and no section any more; must be off, observe or enforce")
    return off_is_a_word(value)


def _has_a_mode(name: str) -> str:
    if name != "feasibility":
        raise ValueError(f"must be feasibility, got {name!r}")
    return name


AdmissionMode = Annotated[Literal["off", "observe", "enforce"], BeforeValidator(_mode)]
AdmissionModes = dict[Annotated[str, AfterValidator(_has_a_mode)], AdmissionMode]


class BatchSettings(Section):
    gone = GONE["batch"]
    max_size: int = Field(default=32, ge=1, le=65_536, description="Most rows in a batch.")
    max_tokens: int = Field(
        default=8192,
        ge=1,
        le=1_073_741_824,
        description="Most tokens in a batch, padding included. A longer row runs alone.",
    )
    max_slo_share: float = Field(
        default=0.45,
        gt=0,
        le=1,
        description="A batch of more than one row may be predicted to take at most this share of "
        "`slo.latency_ms`.",
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
        "token yet may be stopped and queued again, to make room for more urgent work: the last "
        "begun of the least urgent priority.",
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
        description="A tenant with whose inputs so many replicas were lost within `refuse_s` gets "
        "429 from the model until the first loss is older than that. 0: never. A loss counts if "
        "the input was quarantined for it, or if the inputs of one unanswered request are the only "
        "possible cause left.",
    )
