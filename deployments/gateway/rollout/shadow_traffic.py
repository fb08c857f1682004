"""How does the canary run copies of requests that the live version has answered?

A copy is made once the reply was handed over. It has the last priority and a tenant of its own, so
that no caller waits for it or pays for it. It runs once, on the canary alone, and leaves only
counts: whether it was answered, how fast, and whether enough of its rows agree with the live
version's (`agreement`).

ShadowTraffic are bounded in number and bytes (`MOST`, `MAX_BYTES`); a request beyond that is not
copied. A copy that the canary's queue refuses because of load, or that expires, counts for nothing.
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
from deployments.gateway.models.served_model import ServedModel
from deployments.gateway.preprocess.fair_thread_pool import FairThreadPool
from deployments.gateway.queues.batch_queue import BatchQueue
from deployments.gateway.queues.dispatcher_driver import QueueRequest
from deployments.gateway.queues.lost_replicas import CRASH_BUDGET, fingerprints
from deployments.gateway.rollout.agreement import Outputs, agrees
from deployments.gateway.rollout.canary_assignment import count_answer, count_failure
from deployments.gateway.rows import RowAnswer, Rows

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
            pending = queue.submit(rows, queue.terms, self._demand(d)._replace(suspect=suspect))
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
