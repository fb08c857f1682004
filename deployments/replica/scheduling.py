"""Translates a model's settings of scheduling into the settings of its scheduling core.

This is the only translation, used by the service and by simulations. The result is part of the
model's description; `description.dispatcher_settings` adds what the loaded model declares and what
holds for all models of a gateway. Units change here (ms to s) and names become the core's. Nothing
is decided.
"""

from __future__ import annotations

from dataclasses import replace

from deployments.contract.description import CrashTerms, Scheduling
from deployments.settings.lengths import LengthSettings, bucket_edges
from deployments.settings.model import ModelSettings
from deployments.settings.scheduling import OutlierSettings
from routers.api.settings import (
    AdmissionParameters,
    BucketSettings,
    DispatcherSettings,
    GenerationParameters,
    HedgeParameters,
    Mode,
    OutlierParameters,
    SilenceParameters,
)

_NEVER = float("inf")
# Where the settings set no `queue.max_rows`: the bound on one request's rows. It also bounds the
# rows that wait, of a model that generates, and of others until their costs are known.
_REQUEST_ROWS = 2048
_MIN_SILENCE_MS = 250.0  # several times a garbage collection's pause, or a busy neighbour's
_MIN_SILENCE_OF_STREAMS_MS = 2500.0  # twice the longest gap between two signs of life


def scheduling(model: ModelSettings, *, fixed_shapes: bool = False) -> Scheduling:
    """`fixed_shapes`: the backend is compiled for certain lengths, which are then the edges."""
    return Scheduling(
        core=_core(model, fixed_shapes),
        timeout_s=model.timeout_s,
        slots=model.replicas.slots,
        hang_limit_s=model.replicas.hang_limit_s,
        retry=model.retry,
        max_output_tokens=model.generation.max_output_tokens or 0,
        crashes=_crashes(model),
        max_timeout_s=model.max_timeout_s,
    )


def _crashes(model: ModelSettings) -> CrashTerms:
    crashes = model.crashes
    return CrashTerms(crashes.refuse_s, crashes.tenant_budget, crashes.hold_s)


def _core(model: ModelSettings, fixed_shapes: bool) -> DispatcherSettings:
    batch, queue = model.batch, model.queue
    return DispatcherSettings(
        bucket_edges=bucket_edges(model.lengths),
        max_size=batch.max_size,
        max_tokens=batch.max_tokens,
        slo_s=model.deadline_s,
        max_slo_share=batch.max_slo_share,
        fixed_size=batch.fixed_size,
        ageing_s=queue.ageing_ms / 1000,
        max_queue_rows=queue.max_rows or _REQUEST_ROWS,
        queue_timeout_s=model.timeout_s if queue.max_rows is None else None,
        max_late_rows=queue.max_late_rows,
        late=model.slo.late,
        preempt_streams=queue.preempt_streams,
        buckets=_buckets(model, fixed_shapes),
        admission=_admission(model),
        hedge=_hedge(model),
        outliers=_outliers(model.outliers),
        silence=_silence(model),
        generation=_generation(model) if model.task == "generate" else None,
        suspect_hold_s=model.crashes.hold_s,
    )


def _generation(model: ModelSettings) -> GenerationParameters:
    generation, tpot_ms = model.generation, model.slo.tpot_ms
    predict, prompts, affinity = generation.predict, generation.prompts, generation.affinity
    max_long = prompts.max_long_tokens
    return GenerationParameters(
        input_weight=generation.input_weight,
        output_weight=generation.output_weight,
        output_tokens=predict.output_tokens,
        tokens_per_s=predict.tokens_per_s,
        prompt_tokens_per_s=predict.prompt_tokens_per_s,
        reserve_quantile=predict.reserve_quantile,
        long_tokens=prompts.long_tokens,
        max_long_tokens=_NEVER if max_long is None else max_long,
        affinity=affinity.mode,
        max_blocks=affinity.max_blocks,
        tpot_s=_NEVER if tpot_ms is None else tpot_ms / 1000,
    )


def _buckets(model: ModelSettings, fixed_shapes: bool) -> BucketSettings:
    lengths: LengthSettings = model.lengths
    adapt, most = lengths.adapt, lengths.max_buckets
    # Streamed requests are not padded, so other edges would save nothing.
    follows = most is not None and not fixed_shapes and model.task != "generate"
    settings = BucketSettings(
        adaptive=follows,
        solve_every_s=adapt.every_s,
        half_life_s=adapt.half_life_s,
        min_gain=adapt.min_gain,
        fixed_shapes=fixed_shapes,
        switch_s=lengths.switch_ms / 1000 if fixed_shapes else 0.0,
    )
    return settings if most is None else replace(settings, max_edges=most)


def _admission(model: ModelSettings) -> AdmissionParameters:
    admission, work_s = model.admission, model.queue.max_work_s
    feasibility = admission.feasibility
    margin_ms = feasibility.margin_ms
    return AdmissionParameters(
        feasibility=Mode(feasibility.mode),
        margin_s=None if margin_ms is None else margin_ms / 1000,
        best_effort_capacity_s=feasibility.best_effort_capacity_s,
        max_queue_s=_NEVER if work_s is None else work_s,
    )


def _hedge(model: ModelSettings) -> HedgeParameters:
    hedge = model.hedge
    return HedgeParameters(
        # A hedge is a second run of a request; a request that may not run again gets none.
        mode=hedge.mode if model.retry else "off",
        quantile=hedge.quantile,
        fixed_delay_s=None if hedge.delay_ms is None else hedge.delay_ms / 1000,
        budget=hedge.budget,
        max_utilisation=hedge.max_utilisation,
        min_samples=hedge.min_samples,
    )


def _silence(model: ModelSettings) -> SilenceParameters:
    silence = model.silence
    min_ms = silence.min_ms
    if min_ms is None:
        streams = model.task == "generate"
        min_ms = _MIN_SILENCE_OF_STREAMS_MS if streams else _MIN_SILENCE_MS
    return SilenceParameters(
        mode=silence.mode,
        quantile=silence.quantile,
        least_s=min_ms / 1000,
        most_s=max(silence.max_ms, min_ms) / 1000,
        fixed_s=None if silence.after_ms is None else silence.after_ms / 1000,
    )


def _outliers(outliers: OutlierSettings) -> OutlierParameters:
    return OutlierParameters(
        eject_ratio=outliers.eject_ratio if outliers.mode == "eject" else _NEVER,
        max_ejected=outliers.max_ejected,
        probe_s=outliers.probe_s,
        max_probe_s=outliers.max_probe_s,
    )
