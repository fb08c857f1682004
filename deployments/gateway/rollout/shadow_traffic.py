"""How does the canary run copies of requests that the live version has answered, and do they agree?

A copy is made once the reply was handed over. It has the last priority and a tenant of its own, so
that no caller waits for it or pays for it. It runs once, on the canary alone, and leaves only
counts. Copies are bounded in number and bytes (`MOST`, `MAX_BYTES`). A copy that the canary's queue
refuses because of load, or that expires, counts for nothing.
Rows agree if their outputs have equal datatypes and shapes and pass what the terms ask for: cosine,
largest difference, place of the maximum. Where the terms ask for nothing that applies to a
datatype, outputs must be equal. NaN and infinity agree only with themselves.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
from msgspec.structs import replace

from deployments.contract import errors
from deployments.contract.description import ModelDescription
from deployments.contract.rollout.observations import Observations
from deployments.contract.rollout.terms import AgreementTerms
from deployments.gateway.models.served_model import ServedModel
from deployments.gateway.queues.batch_queue import BatchQueue
from deployments.gateway.queues.dispatcher_driver import QueueRequest
from deployments.gateway.queues.lost_replicas import CRASH_BUDGET, fingerprints
from deployments.gateway.rollout.canary_assignment import count_answer, count_failure
from deployments.gateway.rows import RowAnswer, Rows
from deployments.gateway.tenancy.fair_thread_pool import FairThreadPool
from runtimes.types import INDICES, VALUES, side_by_side

MOST = 16  # copies under way
MAX_BYTES = 64 << 20  # of their requests and answers, which no caller's bounds count any more
TENANT = "@copies"  # not a valid name for a tenant of the settings
OTHER_INPUTS = "other_inputs"  # why a copy failed: the canary takes other inputs
_COMPARED_AT_ONCE_BYTES = 65_536  # larger answers are compared in the thread pool
_LOAD_ERRORS = (errors.Overloaded, errors.NotReady, errors.OverOwnLimit, errors.Expired)


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that the live version has answered."""

    description: ModelDescription  # by which the rows were parsed
    rows: Rows
    answers: tuple[RowAnswer, ...]  # the live version's
    body_bytes: int  # of the request

    @property
    def size_bytes(self) -> int:
        """What a copy keeps in memory, with its own answers."""
        return self.body_bytes + 2 * _outputs_bytes(self.answers)


class ShadowTraffic:
    """The copies under way at one gateway. For the event loop's thread alone."""

    def __init__(
        self,
        pool: FairThreadPool,
        rank: int,  # of the last priority
    ) -> None:
        self._pool = pool
        self._rank = rank
        self._under_way: set[asyncio.Task[None]] = set()
        self._held_bytes = 0

    def make(
        self,
        canary: ServedModel,
        answered: Answered,
        seen: Observations,
        terms: AgreementTerms,
    ) -> None:
        """Start a copy, unless there is no room for one. `seen`: where it is counted."""
        queue = canary.queue
        if not isinstance(queue, BatchQueue):
            return
        if len(self._under_way) >= MOST or self._held_bytes + answered.size_bytes > MAX_BYTES:
            return
        if not _same_inputs(answered.description, canary.description):
            count_failure(seen.copies, OTHER_INPUTS)
            return
        copying = self._copy(queue, canary.description, answered, seen, terms)
        # Outside the request's context, whose end would cancel the copy.
        task = asyncio.get_running_loop().create_task(copying, context=contextvars.Context())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _copy(
        self,
        queue: BatchQueue,
        d: ModelDescription,
        answered: Answered,
        seen: Observations,
        terms: AgreementTerms,
    ) -> None:
        self._held_bytes += answered.size_bytes
        try:
            since, rows = monotonic(), answered.rows
            suspect = await self._is_suspect(queue, d, answered)
            pending = queue.submit(rows, queue.terms, replace(self._demand(d), suspect=suspect))
            answers = await pending.future
            count_answer(seen.copies, max(rows.lengths), monotonic() - since)
            agreed = await self._compared(answered, answers, terms)
        except errors.HeadraceError as failure:
            if not isinstance(failure, _LOAD_ERRORS) or failure.reason == CRASH_BUDGET:
                count_failure(seen.copies, failure.reason)
            return
        finally:
            self._held_bytes -= answered.size_bytes
        seen.compared += 1
        seen.agreed += agreed >= terms.least * rows.count

    async def _is_suspect(self, queue: BatchQueue, d: ModelDescription, answered: Answered) -> bool:
        """Whether the canary has lost a replica with one of these rows, although the live version
        has answered them. A suspect runs alone, and only once more. Raises RowQuarantined,
        OverOwnLimit."""
        if not queue.crashes:
            return False
        keys = await self._pool.run(TENANT, fingerprints, answered.rows, d.version)
        return queue.crashes.check(keys, TENANT, monotonic())

    def _demand(self, d: ModelDescription) -> QueueRequest:
        """What a copy demands. It is not repeatable, so it is neither hedged nor retried."""
        scheduling = d.scheduling
        return QueueRequest(
            TENANT, self._rank, scheduling.slo_s, scheduling.timeout_s, repeatable=False
        )

    async def _compared(
        self, answered: Answered, answers: tuple[RowAnswer, ...], terms: AgreementTerms
    ) -> int:
        """How many rows agree. Large answers are compared in the thread pool. Raises Overloaded if
        the pool is full."""
        if _outputs_bytes(answers) <= _COMPARED_AT_ONCE_BYTES:
            return _agreeing(answered.answers, answers, terms, answered.rows.outputs)
        return await self._pool.run(
            TENANT, _agreeing, answered.answers, answers, terms, answered.rows.outputs
        )


def _outputs_bytes(answers: tuple[RowAnswer, ...]) -> int:
    return sum([array.nbytes for each in answers for _, array in each.outputs.values()])


def _same_inputs(live: ModelDescription, canary: ModelDescription) -> bool:
    """Whether rows that were parsed for one may be given to the other."""
    return _inputs(live) == _inputs(canary)


def _inputs(d: ModelDescription) -> tuple[object, ...]:
    return (
        d.inputs, d.lengths_input, d.lengths_axis, d.mask_input, d.optional_inputs,
        d.tokenizer_digest, d.image,
    )  # fmt: skip


def _agreeing(
    live: tuple[RowAnswer, ...],
    canary: tuple[RowAnswer, ...],
    terms: AgreementTerms,
    wanted: tuple[str, ...] | None,
) -> int:
    """How many rows agree in the outputs that were wanted. (A row's answer also has outputs that
    only other rows of its batch wanted.)"""
    return sum(
        agrees(_wanted_outputs(one, wanted), _wanted_outputs(other, wanted), terms)
        for one, other in zip(live, canary, strict=True)
    )


def _wanted_outputs(answer: RowAnswer, wanted: tuple[str, ...] | None) -> Outputs:
    if wanted is None:
        return answer.outputs
    return {name: answer.outputs[name] for name in wanted if name in answer.outputs}


_FLOATING = ("FP", "BF")
Outputs = Mapping[str, tuple[str, np.ndarray[Any, Any]]]
"""One row's outputs, by name: datatype and array."""


def agrees(live: Outputs, canary: Outputs, terms: AgreementTerms) -> bool:
    """Whether the two versions agree on a row."""
    if live.keys() != canary.keys():
        return False
    if live.keys() == {INDICES, VALUES}:
        sides = [(each[INDICES][1], each[VALUES][1]) for each in (live, canary)]
        one, other = (("FP32", values) for values in side_by_side(*sides))
        return _agree(one, other, terms)
    return all(_agree(live[name], canary[name], terms) for name in live)


def _agree(
    one: tuple[str, np.ndarray[Any, Any]],
    other: tuple[str, np.ndarray[Any, Any]],
    terms: AgreementTerms,
) -> bool:
    (datatype, a), (other_datatype, b) = one, other
    if datatype != other_datatype or a.shape != b.shape:
        return False
    cosine = terms.cosine if datatype.startswith(_FLOATING) else None
    asked = cosine is not None or terms.max_abs is not None or terms.top1
    if datatype == "BYTES" or not asked:
        return bool(np.array_equal(a, b))
    x, y = (each.astype(np.float64, copy=False).reshape(-1) for each in (a, b))
    if terms.top1 and x.size and int(x.argmax()) != int(y.argmax()):
        return False
    finite = np.isfinite(x) & np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return False
    return _near(x[finite], y[finite], terms.max_abs, cosine)


def _near(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], max_abs: float | None, cosine: float | None
) -> bool:
    if not x.size:
        return True
    if max_abs is not None and float(np.abs(x - y).max()) > max_abs:
        return False
    return cosine is None or _cosine(x, y) >= cosine


def _cosine(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    """The cosine; 1 where both are zero, 0 where one is."""
    lengths = float(np.linalg.norm(x)) * float(np.linalg.norm(y))
    if not lengths:
        return float(not x.any() and not y.any())
    return float(x @ y) / lengths
