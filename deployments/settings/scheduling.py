"""The settings of one model's scheduling: its batches, queue, admission, hedging and outliers.

These are the settings of `routers/` in the form that users write; `replica/scheduling.py`
translates them. Every shedding policy has a `mode`, and every controller has a fixed value or can
be turned off. Each gateway decides by itself, so counts are those of one gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from yaml_document.section import Section, off_is_a_word, wrong

Mode = Annotated[Literal["off", "observe", "enforce"], BeforeValidator(off_is_a_word)]
_MODES = "not asked (`off`), only counted (`observe`), or acted on (`enforce`)"


class BatchSettings(Section):
    gone: ClassVar[Mapping[str, str]] = {
        "max_passed_over_ms": "length intervals take turns by their cost, so no bound is needed; "
        "queue.ageing_ms bounds how long a priority may be passed over",
        "hold": "an idle replica serves what waits at once",
    }
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
    fixed_size: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="Most rows in a batch, however long it is predicted to take. Unset: as many as "
        "`max_slo_share` allows.",
    )

    @model_validator(mode="after")
    def _fixed_is_within_bounds(self) -> BatchSettings:
        if self.fixed_size is not None and self.fixed_size > self.max_size:
            raise wrong(
                f"is {self.fixed_size}, above max_size ({self.max_size}); "
                f"must be at most {self.max_size}",
                "fixed_size",
            )
        return self


class QueueSettings(Section):
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
    max_late_rows: int = Field(
        default=1024,
        ge=0,
        le=10_000_000,
        description="Most of these rows that may wait although they will miss or have missed their "
        "deadline. A tenant below its share by weight may go above this number.",
    )
    max_work_s: float | None = Field(
        default=None,
        gt=0,
        le=86_400,
        description="Most work that may wait at one gateway, in predicted seconds for each running "
        "replica; further work is refused. Unset: no bound.",
    )
    ageing_ms: float = Field(
        default=1000,
        gt=0,
        le=3_600_000,
        description="A priority whose rows have been passed over for this long leads the next "
        "batch, once.",
    )
    preempt_streams: bool = Field(
        default=False,
        description="For replicas that stream: whether a running request that has produced no "
        "token yet may be stopped and queued again, to make room for more urgent work: the last "
        "begun of the least urgent priority.",
    )


class FeasibilitySettings(Section):
    mode: Mode = Field(
        default="enforce",
        description="Whether a request counts as late on arrival if the work ahead of it cannot "
        f"be served before its deadline: {_MODES}.",
    )
    margin_ms: float | None = Field(
        default=None,
        ge=0,
        le=3_600_000,
        description="Time added to the predicted wait. Unset: learnt from the errors of recent "
        "predictions.",
    )
    best_effort_capacity_s: float | None = Field(
        default=None,
        ge=0,
        le=86_400,
        description="Predicted seconds of late work that may wait. Unset: as much as recent idle "
        "moments could have served.",
    )


class AdmissionSettings(Section):
    gone: ClassVar[Mapping[str, str]] = {
        "codel": "feasibility refuses what would wait too long",
        "limit": "feasibility refuses what would wait too long",
        "modes": "every policy of admission has its own section",
    }
    feasibility: FeasibilitySettings = Field(
        default_factory=FeasibilitySettings,
        description="Requests whose deadline cannot be met any more.",
    )


class HedgeSettings(Section):
    gone: ClassVar[Mapping[str, str]] = {
        "multiple": "quantile finds by itself which multiple of a prediction is slow"
    }
    mode: Annotated[Literal["off", "hedge", "tied"], BeforeValidator(off_is_a_word)] = Field(
        default="hedge",
        description="Whether a batch that takes long, or a request to generate whose first token "
        "does, gets a copy on another replica (`hedge`). `tied`: besides that, a batch that is "
        "staged behind another one gets a copy at once.",
    )
    quantile: float = Field(
        default=0.95,
        gt=0,
        lt=1,
        description="A batch or first token takes long if its time, relative to its prediction, is "
        "above this quantile of its length interval.",
    )
    delay_ms: float | None = Field(
        default=None,
        gt=0,
        le=3_600_000,
        description="A batch or first token takes long after this time, whatever was predicted. "
        "Unset: `quantile` decides.",
    )
    budget: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Device time that copies and retries together may take, as a share of the "
        "device time of first tries.",
    )
    max_utilisation: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="No copies are sent while replicas are busy for more than this share of time.",
    )
    min_samples: int = Field(
        default=30,
        ge=1,
        le=1_000_000,
        description="Batches or first tokens of a length interval that must have been timed before "
        "one of it is copied.",
    )


class SilenceSettings(Section):
    mode: Annotated[Literal["off", "suspend"], BeforeValidator(off_is_a_word)] = Field(
        default="suspend",
        description="Whether a replica that owes an answer and has gone silent gets no new work "
        "until it sends a message again (`suspend`). Its rows that may run twice (`retry`) are "
        "then sent once to another replica.",
    )
    quantile: float = Field(
        default=0.99,
        gt=0.5,
        lt=1,
        description="A replica is silent after twice this quantile of its batches' times, relative "
        "to their predictions.",
    )
    min_ms: float | None = Field(
        default=None,
        gt=0,
        le=3_600_000,
        description="A replica is never silent sooner than this. Unset: 250 ms, and 2.5 s for a "
        "model that generates, whose replicas send a message every second.",
    )
    max_ms: float = Field(
        default=10_000,
        gt=0,
        le=3_600_000,
        description="A replica is silent at the latest after this time, or after twice its batch's "
        "predicted time if that is longer.",
    )
    after_ms: float | None = Field(
        default=None,
        gt=0,
        le=3_600_000,
        description="A replica is silent after this time, whatever was measured. Unset: the other "
        "fields decide.",
    )

    @model_validator(mode="after")
    def _bounds_ascend(self) -> SilenceSettings:
        if self.min_ms is not None and self.max_ms < self.min_ms:
            raise wrong(f"is {self.max_ms:g}; must be at least {self.min_ms:g} (min_ms)", "max_ms")
        return self


class OutlierSettings(Section):
    mode: Annotated[Literal["off", "eject"], BeforeValidator(off_is_a_word)] = Field(
        default="eject",
        description="Whether a replica that is slower than the others is ejected, so that it gets "
        "no work (`eject`), until a probe (a batch or a first token) shows that it is as fast "
        "again.",
    )
    eject_ratio: float = Field(
        default=2,
        gt=1,
        le=1000,
        description="A replica is ejected if it is this many times slower than the median of the "
        "replicas.",
    )
    max_ejected: float = Field(
        default=0.5,
        ge=0,
        lt=1,
        description="Largest share of the replicas that may be ejected at once.",
    )
    probe_s: float = Field(
        default=1, gt=0, le=3600, description="Time between the first probes of an ejected replica."
    )
    max_probe_s: float = Field(
        default=30,
        gt=0,
        le=3600,
        description="The time between probes doubles with each slow probe, up to this.",
    )

    @model_validator(mode="after")
    def _probes_slow_down(self) -> OutlierSettings:
        if self.max_probe_s < self.probe_s:
            raise wrong(
                f"is {self.max_probe_s:g}; must be at least {self.probe_s:g} (probe_s)",
                "max_probe_s",
            )
        return self
