"""Finds the rows of a batch that a runtime fails on, and answers the other rows.

A batch that raises is halved, whatever it raises, until the bad rows stand alone: O(k log n) extra
runs for k bad rows. Only a device that says that it is unhealthy fails the whole batch. A row whose
answer is not finite counts as failed too, unless the model may give such answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from deployments.contract.channel.frames import Column, RowError, from_ragged
from deployments.replica.finite import non_finite_rows, without
from runtimes.errors import BadRows, RunError, Unhealthy
from runtimes.types import Batch, Ragged, Result, Runtime, StageTimes

logger = logging.getLogger("headrace.replica")


class BatchResult(NamedTuple):
    """`outputs`: of the rows that did not fail, in order."""

    outputs: dict[str, Column]
    errors: tuple[RowError, ...]
    times: StageTimes
    padded_tokens: int


_NOT_FINITE = "the answer holds NaN or infinity"
NOTHING_RUN = BatchResult({}, (), StageTimes(), 0)


@dataclass(slots=True)
class _Bisection:
    """The state of one batch's bisection. `parts`: results of the parts that worked, in order."""

    runtime: Runtime
    allow_non_finite: bool
    on_run: Callable[[], None]
    parts: list[Result] = field(default_factory=list)
    errors: list[RowError] = field(default_factory=list)

    def run(self, batch: Batch, first: int) -> None:
        """Run a part of the batch. `first`: the index of the part's first row in the batch."""
        self.on_run()
        try:
            self._keep(self.runtime.run(batch), first)
            return
        except Unhealthy:
            raise
        except Exception as fault:
            if batch.rows == 1:
                self.errors.append(_row_error(first, fault))
                return
        middle = batch.rows // 2
        self.run(take(batch, 0, middle), first)
        self.run(take(batch, middle, batch.rows), first + middle)

    def _keep(self, part: Result, first: int) -> None:
        """Keep a result, and count its rows that are not finite as failed."""
        bad = [] if self.allow_non_finite else non_finite_rows(part.outputs)
        self.errors += [RowError(first + row, False, _NOT_FINITE, True) for row in bad]
        self.parts.append(without(part, bad) if bad else part)


def run_bisected(
    runtime: Runtime,
    batch: Batch,
    *,
    allow_non_finite: bool = False,
    on_run: Callable[[], None] = lambda: None,
) -> BatchResult:
    """Run the batch. Raises `Unhealthy` only, from a runtime whose device is unhealthy. `on_run` is
    called before each run of the batch or of a part of it."""
    done = _Bisection(runtime, allow_non_finite, on_run)
    done.run(batch, 0)
    padded_tokens = sum(part.padded_tokens for part in done.parts)
    return BatchResult(
        from_ragged(_joined(done.parts)),
        tuple(done.errors),
        StageTimes.total(done.parts),
        padded_tokens,
    )


def _row_error(row: int, fault: Exception) -> RowError:
    if not isinstance(fault, BadRows | RunError):
        logger.error("the runtime raised what it should not", exc_info=fault)
    return RowError(row, isinstance(fault, BadRows), str(fault))


def take(batch: Batch, start: int, stop: int) -> Batch:
    """Rows start..stop of a batch (views)."""
    inputs = {name: _slice(ragged, start, stop) for name, ragged in batch.inputs.items()}
    return Batch(stop - start, batch.lengths[start:stop], inputs, batch.outputs)


def _slice(ragged: Ragged, start: int, stop: int) -> Ragged:
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in ragged.shapes]
    before, within = sum(sizes[:start]), sum(sizes[start:stop])
    return Ragged(ragged.datatype, ragged.data[before : before + within], ragged.shapes[start:stop])


def _joined(parts: list[Result]) -> dict[str, Ragged]:
    if len(parts) == 1:
        return dict(parts[0].outputs)
    names = parts[0].outputs if parts else ()
    return {
        name: Ragged(
            parts[0].outputs[name].datatype,
            np.concatenate([part.outputs[name].data for part in parts]),
            tuple(shape for part in parts for shape in part.outputs[name].shapes),
        )
        for name in names
    }
