"""Translates a model's settings of scheduling into the settings of its scheduling core.

This is the only translation, used by the service and by simulations. The result is part of the
model's description; `description.dispatcher_settings` adds what the loaded model declares and what
holds for all models of a gateway. Units change here (ms to s) and names become the core's. Nothing
is decided.
"""

from __future__ import annotations

from dataclasses import replace

from deployments.contract.description import CrashTerms, Scheduling
from deployments.settings.lengths import bucket_edges
from deployments.settings.model import ModelSettings
from deployments.settings.scheduling import WITH_PARAMETERS
from routers.api.settings import (
    AdmissionParameters,
    BucketSettings,
    CodelParameters,
    DispatcherSettings,
    GenerationParameters,
    HedgeParameters,
    LimitParameters,
    Mode,
    OutlierParameters,
    PolicyNames,
    SilenceParameters,
)

_NEVER = float("inf")
_NO_EJECTION = OutlierParameters(eject_ratio=_NEVER)
# Where the settings set no `queue.max_rows`: the bound on one request's rows. It also bounds the
# rows that wait, of a model that generates, and of others until their costs are known.
_REQUEST_ROWS = 2048
_MAX_LATE_ROWS = 1024  # half of `_REQUEST_ROWS`, so that late rows never fill a queue
_MIN_SILENCE_S = 0.25  # several times a garbage collection's pause, or a busy neighbour's
_MIN_SILENCE_OF_STREAMS_S = 2.5  # twice the longest gap between two signs of life


def scheduling(model: ModelSettings, *, fixed_shapes: bool = False) -> Scheduling:
    """`fixed_shapes`: the backend is compiled for certain lengths, which are then the edges."""
    return Scheduling(
        core=_core(model, fixed_shapes),
        timeout_s=model.timeout_s,
        slots=model.replicas.slots,
        hang_limit_s=model.replicas.hang_limit_s,
        retry=model.retry,
        max_output_tokens=model.generation.max_output_tokens or 0,
        crashes=CrashTerms(tenant_budget=model.crashes.tenant_budget, hold_s=model.crashes.hold_s),
        max_timeout_s=model.max_timeout_s,
    )


def _core(model: ModelSettings, fixed_shapes: bool) -> DispatcherSettings:
    batch, queue = model.batch, model.queue
    return DispatcherSettings(
        bucket_edges=bucket_edges(model.lengths),
        max_size=batch.max_size,
        max_tokens=batch.max_tokens,
        slo_s=model.deadline_s,
        max_slo_share=batch.max_slo_share,
        hold=batch.hold,
        max_queue_rows=queue.max_rows or _REQUEST_ROWS,
        queue_timeout_s=model.timeout_s if queue.max_rows is None else None,
        max_late_rows=min(_MAX_LATE_ROWS, queue.max_rows or _MAX_LATE_ROWS),
        late=model.slo.late,
        preempt_streams=queue.preempt_streams,
        buckets=_buckets(model, fixed_shapes),
        admission=_admission(model),
        # A hedge is a second run of a request; a request that may not run again gets none.
        hedge=HedgeParameters(model.hedge.mode if model.retry else "off"),
        outliers=OutlierParameters() if model.outliers.mode == "eject" else _NO_EJECTION,
        silence=_silence(model),
        generation=_generation(model) if model.task == "generate" else None,
        suspect_hold_s=model.crashes.hold_s,
        policies=PolicyNames(
            model.policies.order,
            model.policies.batching,
            model.policies.placement,
            model.policies.admission,
            model.policies.hedging,
            model.policies.edges,
            model.policies.preemption,
        ),
    )


def _generation(model: ModelSettings) -> GenerationParameters:
    generation, tpot_ms = model.generation, model.slo.tpot_ms
    max_long = generation.prompts.max_long_tokens
    return GenerationParameters(
        max_long_tokens=_NEVER if max_long is None else max_long,
        affinity=generation.affinity.mode,
        tpot_s=_NEVER if tpot_ms is None else tpot_ms / 1000,
        adapters_resident=model.adapters_resident if model.adapters else 0,
    )


def _buckets(model: ModelSettings, fixed_shapes: bool) -> BucketSettings:
    most = model.lengths.max_buckets
    # Streamed requests are not padded, so other edges would save nothing.
    follows = most is not None and not fixed_shapes and model.task != "generate"
    settings = BucketSettings(adaptive=follows, fixed_shapes=fixed_shapes)
    return settings if most is None else replace(settings, max_edges=most)


def _admission(model: ModelSettings) -> AdmissionParameters:
    modes, given = model.admission, AdmissionParameters()
    return AdmissionParameters(
        feasibility=Mode(modes.get("feasibility", given.feasibility)),
        codel=CodelParameters(Mode(modes.get("codel", given.codel.mode))),
        limit=LimitParameters(Mode(modes.get("limit", given.limit.mode))),
        modes=tuple(
            (name, Mode(mode))
            for name, mode in sorted(modes.items())
            if name not in WITH_PARAMETERS
        ),
    )


def _silence(model: ModelSettings) -> SilenceParameters:
    least_s = _MIN_SILENCE_OF_STREAMS_S if model.task == "generate" else _MIN_SILENCE_S
    return SilenceParameters(mode=model.silence.mode, least_s=least_s)
