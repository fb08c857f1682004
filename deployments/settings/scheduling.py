"""How one model's requests are queued, batched, let in, placed and raced.

What users write of `routers` settings; `contract/scheduling.py` translates. Every shedding policy
has a `mode`, every controller a fixed value or a way to turn it off. What stands here is decided
at each gateway on its own, so counts are a gateway's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from routers.policies.registry import modeless
from yaml_document.section import Section, off_is_a_word, wrong

Mode = Annotated[Literal["off", "observe", "enforce"], BeforeValidator(off_is_a_word)]
_MODES = "not asked (`off`), only counted (`observe`), or acted on (`enforce`)"


class BatchSettings(Section):
    gone: ClassVar[Mapping[str, str]] = {
        "max_passed_over_ms": "length intervals take turns by what they cost, so there is nothing "
        "to bound; queue.ageing_ms says how long a priority may be passed over"
    }
    max_size: int = Field(default=32, ge=1, le=65_536, description="Rows in a batch at most.")
    max_tokens: int = Field(
        default=8192,
        ge=1,
        le=1_073_741_824,
        description="Tokens in a batch at most, padding included; a longer single row runs alone.",
    )
    max_slo_share: float = Field(
        default=0.45,
        gt=0,
        le=1,
        description="A batch of more than one row is predicted to take at most this share of "
        "`slo.latency_ms`.",
    )
    fixed_size: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="Rows in a batch at most, whatever it is predicted to take; unset, what "
        "`max_slo_share` allows.",
    )
    hold: Literal["never", "auto"] = Field(
        default="never",
        description="Whether an idle replica may wait for a batch to fill: never, or while slack "
        "and arrivals pay for it.",
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
        description="Rows that may wait at one gateway; more are refused. A tenant that has fewer "
        "than its share of them by weight takes its place from who is furthest over its own. "
        "Unset, what the running replicas can answer within the model's timeout beside what other "
        "gateways have them do, as far as they are measured, from 256 to 65,536; of a model that "
        "generates, by what the requests answered lately have taken. Until that is known, and as "
        "the most rows of one request, 2,048.",
    )
    max_late_rows: int = Field(
        default=1024,
        ge=0,
        le=10_000_000,
        description="Of those, rows that may wait although they have missed their deadline; a "
        "tenant's share by weight on top where it has less.",
    )
    max_work_s: float | None = Field(
        default=None,
        gt=0,
        le=86_400,
        description="Predicted seconds of work a replica that may wait at one gateway; more is "
        "refused; unset, no bound.",
    )
    ageing_ms: float = Field(
        default=1000,
        gt=0,
        le=3_600_000,
        description="A priority that has been passed over this long leads one batch.",
    )
    preempt_streams: bool = Field(
        default=False,
        description="Whether running work of which no token has come may be stopped and queued "
        "again for more urgent work, on replicas that stream; which, `policies.preemption` says.",
    )


def _without_parameters(name: str) -> str:
    """Raises ValueError for a controller whose mode stands elsewhere, or that is not there."""
    if name not in modeless():
        known = ", ".join(modeless()) or "none is there"
        raise ValueError(
            f"must be a controller without parameters of its own ({known}), got {name!r}"
        )
    return name


class FeasibilitySettings(Section):
    mode: Mode = Field(
        default="enforce",
        description="Whether a request counts as late on arrival when what is ahead of it cannot "
        f"be served before its deadline: {_MODES}.",
    )
    margin_ms: float | None = Field(
        default=None,
        ge=0,
        le=3_600_000,
        description="What is added to the predicted wait; unset, learnt from how wrong it was.",
    )
    best_effort_capacity_s: float | None = Field(
        default=None,
        ge=0,
        le=86_400,
        description="Predicted seconds of late work that may wait; unset, what idle moments are "
        "lately seen to have room for.",
    )


class CodelSettings(Section):
    mode: Mode = Field(
        default="observe",
        description=f"Whether rows that wait in a standing queue are refused: {_MODES}.",
    )
    target_ms: float = Field(
        default=20,
        gt=0,
        le=3_600_000,
        description="Queue wait that is fine; twice that is refused while the queue stands.",
    )
    interval_ms: float = Field(
        default=500,
        gt=0,
        le=3_600_000,
        description="A queue stands once nothing has waited less than `target_ms` for this long.",
    )

    @model_validator(mode="after")
    def _interval_covers_target(self) -> CodelSettings:
        if self.interval_ms < self.target_ms:
            raise wrong(
                f"is {self.interval_ms:g}, shorter than target_ms ({self.target_ms:g}); "
                f"must be at least {self.target_ms:g}",
                "interval_ms",
            )
        return self


class LearntLimitSettings(Section):
    mode: Mode = Field(
        default="observe",
        description="Whether requests of one tenant and priority beyond a limit, waiting and "
        f"running together at one gateway, are refused: {_MODES}.",
    )
    fixed: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="The limit; unset, it is learnt from queue waits.",
    )
    least: int = Field(
        default=16, ge=1, le=10_000_000, description="A learnt limit never falls below this."
    )
    most: int = Field(
        default=100_000, ge=1, le=10_000_000, description="A learnt limit never rises above this."
    )

    @model_validator(mode="after")
    def _bounds_ascend(self) -> LearntLimitSettings:
        if self.most < self.least:
            raise wrong(f"is {self.most}; must be at least {self.least} (least)", "most")
        return self


class AdmissionSettings(Section):
    feasibility: FeasibilitySettings = Field(
        default_factory=FeasibilitySettings, description="Deadlines that can no longer be met."
    )
    codel: CodelSettings = Field(
        default_factory=CodelSettings, description="Queues that stand (CoDel)."
    )
    limit: LearntLimitSettings = Field(
        default_factory=LearntLimitSettings, description="How many requests may be in hand."
    )
    modes: dict[Annotated[str, AfterValidator(_without_parameters)], Mode] = Field(
        default_factory=dict,
        description="Of controllers of `policies.admission` that have no section here: whether "
        f"they are {_MODES}; those that are left out are acted on.",
    )


class HedgeSettings(Section):
    mode: Annotated[Literal["off", "hedge", "tied"], BeforeValidator(off_is_a_word)] = Field(
        default="hedge",
        description="Whether a batch that takes long gets a copy on another replica (`hedge`), or "
        "a request to generate whose first token does; `tied`: so does, at once, a batch that is "
        "staged behind another one.",
    )
    quantile: float = Field(
        default=0.95,
        gt=0,
        lt=1,
        description="A batch or first token has taken long beyond this quantile of its length "
        "interval's times.",
    )
    multiple: float = Field(
        default=2,
        gt=1,
        le=1000,
        description="With `policies.hedging: multiple`: a batch or first token has taken long "
        "beyond so many times its prediction.",
    )
    delay_ms: float | None = Field(
        default=None,
        gt=0,
        le=3_600_000,
        description="A batch or first token has taken long after this time; unset, what "
        "`quantile` says.",
    )
    budget: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Device time that copies and retries together may cost, as a share of what "
        "first tries cost.",
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
        description="Batches or first tokens of a length interval that were timed before any is "
        "copied.",
    )


class SilenceSettings(Section):
    mode: Annotated[Literal["off", "suspend"], BeforeValidator(off_is_a_word)] = Field(
        default="suspend",
        description="Whether a replica that owes an answer and has stopped talking gets no new "
        "work until it talks again (`suspend`); what may run twice then goes elsewhere once.",
    )
    quantile: float = Field(
        default=0.99,
        gt=0.5,
        lt=1,
        description="It has stopped talking after twice this quantile of what its batches take.",
    )
    least_ms: float | None = Field(
        default=None,
        gt=0,
        le=3_600_000,
        description="But never sooner than this; unset, 250 ms, and 2.5 s for a model that "
        "generates, whose replicas say something every second.",
    )
    most_ms: float = Field(
        default=10_000,
        gt=0,
        le=3_600_000,
        description="Nor later than this, or twice what its batch was predicted to take.",
    )
    after_ms: float | None = Field(
        default=None,
        gt=0,
        le=3_600_000,
        description="It has stopped talking after this time; unset, what the others say.",
    )

    @model_validator(mode="after")
    def _bounds_ascend(self) -> SilenceSettings:
        if self.least_ms is not None and self.most_ms < self.least_ms:
            raise wrong(
                f"is {self.most_ms:g}; must be at least {self.least_ms:g} (least_ms)", "most_ms"
            )
        return self


class OutlierSettings(Section):
    mode: Annotated[Literal["off", "eject"], BeforeValidator(off_is_a_word)] = Field(
        default="eject",
        description="Whether a replica that is slower than the others is left out (`eject`) until "
        "a batch or first token that probes it is quick again.",
    )
    eject_ratio: float = Field(
        default=2,
        gt=1,
        le=1000,
        description="How much slower than the median of the replicas it has to be.",
    )
    max_ejected: float = Field(
        default=0.5, ge=0, lt=1, description="Share of the replicas that may be left out."
    )
    probe_s: float = Field(
        default=1, gt=0, le=3600, description="Time between probes of a replica that is left out."
    )
    max_probe_s: float = Field(
        default=30,
        gt=0,
        le=3600,
        description="That time doubles with each probe that is slow, up to this.",
    )

    @model_validator(mode="after")
    def _probes_slow_down(self) -> OutlierSettings:
        if self.max_probe_s < self.probe_s:
            raise wrong(
                f"is {self.max_probe_s:g}; must be at least {self.probe_s:g} (probe_s)",
                "max_probe_s",
            )
        return self
