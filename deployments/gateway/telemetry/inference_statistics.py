"""What one gateway has counted of each model's live version, in the terms of Triton's statistics.

Requests are counted when they end, batches when they come back. A request's times in a batch are
the whole batch's, as in Triton. Counts begin anew with a version; what a canary answered is in
none. A model that generates has one execution per request: its engine's steps are not seen here.
Source: Triton, "Statistics Extension".
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from deployments.gateway.http.protocols import triton
from deployments.gateway.queues.pending_requests import BatchRecord
from deployments.gateway.request_context import RequestContext
from deployments.gateway.telemetry.sample_tables import ANSWERED


@dataclass(slots=True)
class Duration:
    """How often something happened, and for how long in all."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.ns += int(seconds * 1e9) * count


@dataclass(slots=True)
class BatchSizeStatistics:
    """Of batches of one size; times per batch."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass(slots=True)
class ModelStatistics:
    """Of one version. `compute_input` is padding and copying in, `compute_output` copying out and
    what follows; `cache_hit` counts requests whose rows all had been answered before."""

    version: str
    last_inference_ms: int = 0  # since the epoch; 0: none
    inference_count: int = 0  # rows, or generated answers
    execution_count: int = 0  # batches, or generated answers
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    cache_hit: Duration = field(default_factory=Duration)
    cache_miss: Duration = field(default_factory=Duration)
    by_size: dict[int, BatchSizeStatistics] = field(default_factory=dict)

    def ended(self, context: RequestContext, total_s: float) -> None:
        """A request ended, in whichever way."""
        if context.outcome != ANSWERED:
            self.fail.add(total_s)
            return
        self.success.add(total_s)
        if context.ran:
            self.queue.add(context.queue_wait_s)
        if context.generated is not None:
            self._executed(1)
            self.compute_infer.add(max(total_s - context.queue_wait_s, 0.0))
        reused = context.reused
        if reused is not None and reused.kept is not None:
            hit = reused.kept == len(reused.answers)
            (self.cache_hit if hit else self.cache_miss).add(total_s)

    def ran(self, record: BatchRecord) -> None:
        """A batch came back."""
        pad_s, copy_in_s, run_s, copy_out_s, post_s = record.reply.stages
        of_size = self.by_size.setdefault(record.size, BatchSizeStatistics())
        self._executed(record.size)
        for total, alike, seconds in (
            (self.compute_input, of_size.compute_input, pad_s + copy_in_s),
            (self.compute_infer, of_size.compute_infer, run_s),
            (self.compute_output, of_size.compute_output, copy_out_s + post_s),
        ):
            total.add(seconds, len(record.traces))
            alike.add(seconds)

    def entry(self, name: str) -> triton.ModelStatisticsEntry:
        """What Triton's page says of the model `name`."""
        fields = triton.InferenceTimes.__struct_fields__
        sizes = [
            triton.BatchTimes(
                size,
                _duration(each.compute_input),
                _duration(each.compute_infer),
                _duration(each.compute_output),
            )
            for size, each in sorted(self.by_size.items())
        ]
        return triton.ModelStatisticsEntry(
            name,
            self.version,
            self.last_inference_ms,
            self.inference_count,
            self.execution_count,
            triton.InferenceTimes(**{field: _duration(getattr(self, field)) for field in fields}),
            sizes,
        )

    def _executed(self, rows: int) -> None:
        self.inference_count += rows
        self.execution_count += 1
        self.last_inference_ms = int(time.time() * 1000)


def _duration(found: Duration) -> triton.StatisticDuration:
    return triton.StatisticDuration(found.count, found.ns)


class InferenceStatistics:
    """Of all models that are served."""

    def __init__(self) -> None:
        self._by_model: dict[str, ModelStatistics] = {}

    def declare(self, versions: Mapping[str, str]) -> None:
        """The live versions, by model. Another version begins at nothing."""
        known = self._by_model
        self._by_model = {
            name: known[name]
            if name in known and known[name].version == version
            else ModelStatistics(version)
            for name, version in versions.items()
        }

    def of(self, model: str, version: str) -> ModelStatistics:
        """Of a live version; nothing if it was declared neither now nor before."""
        found = self._by_model.get(model)
        return found if found is not None and found.version == version else ModelStatistics(version)

    def ended(self, context: RequestContext, total_s: float) -> None:
        found = self._by_model.get(context.model)
        # A request that was refused before it was given a version counts too.
        if found is not None and context.version in ("", found.version):
            found.ended(context, total_s)

    def ran(self, model: str, record: BatchRecord) -> None:
        found = self._by_model.get(model)
        if found is not None:
            found.ran(record)
