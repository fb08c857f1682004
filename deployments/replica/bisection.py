"""Finds the rows that a runtime fails on, and answers the others of their batch.

A batch that raises is halved, whatever it raises, until the bad rows stand alone: O(k log n) extra
runs for k bad rows. Only a device that says it is unhealthy ends the whole batch.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np

from deployments.contract.channel.messages import Column, RowError, from_ragged
from runtimes.errors import BadRows, RunError, Unhealthy
from runtimes.types import Batch, Ragged, Result, Runtime, StageTimes

logger = logging.getLogger("headrace.replica")


class BatchResult(NamedTuple):
    """`outputs`: of the rows that worked, in order."""

    outputs: dict[str, Column]
    errors: tuple[RowError, ...]
    times: StageTimes
    padded_tokens: int


NOTHING_RUN = BatchResult({}, (), StageTimes(), 0)


def run_bisected(runtime: Runtime, batch: Batch) -> BatchResult:
    """Raises only what the runtime raises when its device is unhealthy."""
    parts: list[Result] = []
    errors: list[RowError] = []
    _halve(runtime, batch, 0, parts, errors)
    padded_tokens = sum(part.padded_tokens for part in parts)
    return BatchResult(
        from_ragged(_joined(parts)), tuple(errors), StageTimes.total(parts), padded_tokens
    )


def _halve(
    runtime: Runtime, batch: Batch, first: int, parts: list[Result], errors: list[RowError]
) -> None:
    try:
        parts.append(runtime.run(batch))
        return
    except Unhealthy:
        raise
    except Exception as fault:
        if batch.rows == 1:
            errors.append(_row_error(first, fault))
            return
    middle = batch.rows // 2
    _halve(runtime, take(batch, 0, middle), first, parts, errors)
    _halve(runtime, take(batch, middle, batch.rows), first + middle, parts, errors)


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
