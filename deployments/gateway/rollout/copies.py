"""Copies of requests that the live version has answered, for the canary to answer as well.

Made once the reply has been handed over, at the last priority and for a tenant of their own, so
that no caller waits for one or pays for it. A copy runs once, on the canary alone, and leaves
nothing behind but counts: whether it was answered, how fast, and whether enough of its rows agree.
Few are under way at once; what there is no room for is not copied, and what the canary's queue
turns away because of load, or has no time for, counts for nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
from dataclasses import dataclass
from time import monotonic

from deployments.contract import errors
from deployments.contract.description import ModelDescription
from deployments.contract.rollout.observations import Observations
from deployments.contract.rollout.terms import AgreementTerms
from deployments.gateway.preprocess.fair_thread_pool import FairThreadPool
from deployments.gateway.queues.batch_queue import BatchQueue
from deployments.gateway.queues.core_loop import Demand
from deployments.gateway.queues.crash_records import CRASH_BUDGET, fingerprints
from deployments.gateway.queues.served_model import ServedModel
from deployments.gateway.rollout.agreement import Outputs, agrees
from deployments.gateway.rollout.trial import count_answer, count_failure
from deployments.gateway.rows.types import RowAnswer, Rows

MOST = 16
MOST_BYTES = 64 << 20  # that the requests under way hold, which their callers no longer pay for
TENANT = "@copies"  # no name that a tenant may have
OTHER_INPUTS = "other_inputs"
_COMPARED_AT_ONCE_BYTES = 65_536
_LOAD = (errors.Overloaded, errors.NotReady, errors.OverOwnLimit, errors.Expired)


@dataclass(frozen=True, slots=True)
class Answered:
    """A request and the live version's answers. `description`: what its rows were parsed by;
    `size_bytes`: of its body."""

    description: ModelDescription
    rows: Rows
    answers: tuple[RowAnswer, ...]
    size_bytes: int


class Copies:
    """`rank`: the last priority's. For the event loop's thread alone."""

    def __init__(self, pool: FairThreadPool, rank: int) -> None:
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
        """A copy begins, unless there is no room for it."""
        queue = canary.queue
        if not isinstance(queue, BatchQueue):
            return
        if len(self._under_way) >= MOST or self._held_bytes + answered.size_bytes > MOST_BYTES:
            return
        if not _same_inputs(answered.description, canary.description):
            count_failure(seen.copies, OTHER_INPUTS)
            return
        copying = self._copy(queue, canary.description, answered, seen, terms)
        # Outside of the request's context: its end is not the copy's.
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
            pending = queue.submit(rows, queue.terms, self._demand(d)._replace(suspect=suspect))
            answers = await pending.future
            count_answer(seen.copies, max(rows.lengths), monotonic() - since)
            agreed = await self._compared(answered, answers, terms)
        except errors.HeadraceError as failure:
            if not isinstance(failure, _LOAD) or failure.reason == CRASH_BUDGET:
                count_failure(seen.copies, failure.reason)
            return
        finally:
            self._held_bytes -= answered.size_bytes
        seen.compared += 1
        seen.agreed += agreed >= terms.least * rows.count

    async def _is_suspect(self, queue: BatchQueue, d: ModelDescription, answered: Answered) -> bool:
        """Whether the canary has lost a replica with one of the rows, which the live version has
        answered: it runs alone then, and once more at most. Raises RowConvicted, OverOwnLimit."""
        if not queue.crashes:
            return False
        keys = await self._pool.run(TENANT, fingerprints, answered.rows, d.version)
        return queue.crashes.check(keys, TENANT, monotonic())

    def _demand(self, d: ModelDescription) -> Demand:
        """Not repeatable: it is neither hedged nor retried."""
        promise = d.scheduling
        return Demand(TENANT, self._rank, promise.slo_s, promise.timeout_s, repeatable=False)

    async def _compared(
        self, answered: Answered, answers: tuple[RowAnswer, ...], terms: AgreementTerms
    ) -> int:
        """How many rows agree; of large answers off the loop, where there is room for that."""
        size = sum(array.nbytes for each in answers for _, array in each.outputs.values())
        if size <= _COMPARED_AT_ONCE_BYTES:
            return _agreeing(answered.answers, answers, terms, answered.rows.outputs)
        return await self._pool.run(
            TENANT, _agreeing, answered.answers, answers, terms, answered.rows.outputs
        )


def _same_inputs(live: ModelDescription, canary: ModelDescription) -> bool:
    """Whether rows that were parsed by one are rows of the other."""
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
    """A row may have come with outputs that only others in its batch wanted."""
    return sum(
        agrees(_of(one, wanted), _of(other, wanted), terms)
        for one, other in zip(live, canary, strict=True)
    )


def _of(answer: RowAnswer, wanted: tuple[str, ...] | None) -> Outputs:
    if wanted is None:
        return answer.outputs
    return {name: answer.outputs[name] for name in wanted if name in answer.outputs}
