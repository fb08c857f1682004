"""One request on its way, and what it demands of a queue.

A context collects where its request's time went and how it ended, and becomes one record for
metrics and tracing when the request has finished. Time already spent is gone from a demand's
budgets, a session is its tenant's own, lengths are held against the tenant's bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from time import monotonic, perf_counter

from deployments.contract import errors
from deployments.contract.description import Scheduling
from deployments.gateway.http.exchange import Exchange, RequestOptions
from deployments.gateway.queues.dispatcher_driver import QueueRequest
from deployments.gateway.reuse.answer_reuse import ReusedAnswers
from deployments.gateway.rows import RowAnswer
from deployments.gateway.suspected_requests import Work
from deployments.gateway.tenancy.tenants import Caller
from deployments.gateway.tracing import TraceContext
from routers.api.requests import Tokens

ENGINE_REFUSED = "engine_refused"
NO_OPTIONS = RequestOptions(None, "", True)
_LONGEST_SESSION = 128  # as of `x-session-id`; a gateway remembers many


@dataclass(frozen=True, slots=True)
class Generated:
    """What a request to generate has had when it ended. `ttft_s`: from its headers' arrival to its
    first token at this gateway, None where none came; `tpot_s`: between further ones, None of fewer
    than two; both are the client's own only of one that `streams`. `replica_id`: where it ran last;
    `repeats`: runs before that one, which were lost or failed."""

    tokens: Tokens
    ttft_s: float | None
    tpot_s: float | None
    streams: bool
    scheduling: Scheduling
    replica_id: str = ""
    repeats: int = 0

    def kept(self, total_s: float) -> bool:
        """Whether both promises were: the first token in time and the others at their pace. Of an
        answer that came whole, all of it by then."""
        generation = self.scheduling.core.generation
        tpot_limit_s = inf if generation is None else generation.tpot_s
        if not self.streams:
            further = max(self.tokens.output - 1, 0)
            return total_s <= self.scheduling.slo_s + (tpot_limit_s * further if further else 0.0)
        if self.ttft_s is None or self.ttft_s > self.scheduling.slo_s:
            return False
        return self.tpot_s is None or self.tpot_s <= tpot_limit_s


class RequestContext:
    """`protocol`: the codec's label. `mark` fills `stages` (seconds) in the pipeline's order.
    `counted`: its tokens, as they were at its tenant's rate; None: not yet. `fallback`: the model
    that answered if it is not the requested one; `version`: what answered, or was to last. `begun`:
    it is under way.
    `expired_key`: the id of the key it came by, where that has expired. `scheduling`: of the
    requested one, once it is found. `ran`: rows of it were queued and run, for it or an
    identical request. `reused`: None where its model neither keeps nor shares answers."""

    __slots__ = (
        "_last",
        "_last_row",
        "_queued_at",
        "answers",
        "begun",
        "caller",
        "counted",
        "exchange",
        "expired_key",
        "fallback",
        "generated",
        "model",
        "options",
        "outcome",
        "protocol",
        "queue_wait_s",
        "ran",
        "reason",
        "request_bytes",
        "response_bytes",
        "reused",
        "scheduling",
        "service_s",
        "stages",
        "status",
        "trace",
        "version",
        "work",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, protocol: str, trace: TraceContext) -> None:
        self.exchange = exchange
        self.protocol = protocol
        self.caller: Caller | None = None
        self.options = NO_OPTIONS
        self.model = self.fallback = self.expired_key = self.version = ""
        self.begun = self.ran = False
        self.counted: int | None = None
        self.answers: tuple[RowAnswer, ...] = ()
        self.generated: Generated | None = None
        self.scheduling: Scheduling | None = None
        self.stages: dict[str, float] = {}
        self.queue_wait_s = 0.0
        self.service_s = 0.0
        self.work: Work | None = None
        self.outcome = "ok"
        self.status = 200
        self.reason = ""
        self.request_bytes = self.response_bytes = 0
        self.trace = trace
        self.reused: ReusedAnswers | None = None
        self._queued_at = 0.0
        self._last = exchange.arrived
        self._last_row: RowAnswer | None = None

    def mark(self, stage: str) -> None:
        """The time since the last mark belongs to `stage`."""
        now = perf_counter()
        self.stages[stage] = self.stages.get(stage, 0.0) + now - self._last
        self._last = now

    def queued(self) -> None:
        """It waits, in a queue or for another's run; a cheaper model's queue goes on counting."""
        self._queued_at = self._queued_at or monotonic()
        if self.work is not None:
            self.work.pause()

    def fell_back(self) -> None:
        """It goes on to a cheaper model; its wait so far belongs to no stage."""
        self._last = perf_counter()
        if self.work is not None:
            self.work.go_on()

    def answered(self, answers: tuple[RowAnswer, ...], fallback: str) -> None:
        """All rows are back. The last one to be dispatched says how long the request queued."""
        self._last = perf_counter()
        self.answers, self.fallback = answers, fallback
        self._last_row = last = max(answers, key=_dispatched)
        self.ran = last.dispatched > 0.0
        if self.ran:
            self.queue_wait_s = max(last.dispatched - self._queued_at, 0.0)
            self.service_s = last.service_s

    def stream_began(self, dispatched_at: float, fallback: str) -> None:
        """The first piece of an answer that flows is here."""
        self._last = perf_counter()
        self.ran, self.fallback = True, fallback
        self.queue_wait_s = max(dispatched_at - self._queued_at, 0.0)

    def refused_by_engine(self, status: int) -> None:
        """Its answer is the engine's own error."""
        known = errors.BadRequest if status < 500 else errors.RowFailed
        self.outcome, self.reason, self.status = known.outcome, ENGINE_REFUSED, status

    def kept(self, total_s: float) -> bool:
        """Whether an answer that took so long kept the SLO: the model's, or the time that
        its caller gave."""
        if self.generated is not None:
            return self.generated.kept(total_s)
        scheduling = self.scheduling
        if scheduling is None:
            return False
        budget_s = scheduling.budget_s(self.options.budget_s)
        return total_s <= (scheduling.slo_s if budget_s is None else budget_s)

    def age_s(self) -> float:
        return perf_counter() - self.exchange.arrived

    def failed(self, error: errors.HeadraceError) -> None:
        self.outcome = error.outcome
        self.reason = error.reason
        self.status = error.status
        if isinstance(error, errors.Unauthorized):
            self.expired_key = error.expired_key

    def headers(self, error: errors.HeadraceError | None) -> list[tuple[bytes, bytes]]:
        """What every answer carries, and what an answered or refused one carries besides."""
        head = [(b"traceparent", self.trace.traceparent())]
        if error is not None:
            return head + error.headers()
        head.append((b"x-queue-wait-ms", b"%.3f" % (self.queue_wait_s * 1e3)))
        if self.answers or self.service_s:
            head.append((b"x-service-time-ms", b"%.3f" % (self.service_s * 1e3)))
        last = self._last_row
        if self.ran and last is not None:
            head += [(b"x-batch-size", b"%d" % last.batch_size), (b"x-bucket", b"%d" % last.bucket)]
        if self.fallback:
            head.append((b"x-served-by", self.fallback.encode()))
        return head if self.reused is None else head + self.reused.headers()


def _dispatched(answer: RowAnswer) -> float:
    return answer.dispatched


def queue_request(
    context: RequestContext, scheduling: Scheduling, session: str = ""
) -> QueueRequest:
    """Some of a request's time has passed since its headers arrived. `session`: where its headers
    name none."""
    assert context.caller is not None
    tenant, options = context.caller.tenant, context.options
    spent_s = perf_counter() - context.exchange.arrived
    budget_s = scheduling.budget_s(options.budget_s)
    session = options.session or (session if len(session) <= _LONGEST_SESSION else "")
    due_s = scheduling.slo_s if budget_s is None else budget_s
    if scheduling.core.generation is not None and budget_s is not None:
        due_s = min(scheduling.slo_s, budget_s)  # its first token is due before all of its answer
    # Sessions of different tenants are different, whatever their callers name them.
    own_session = f"{tenant.name}/{session}" if session else ""
    budget_s = scheduling.timeout_s if budget_s is None else budget_s
    return QueueRequest(
        tenant.name, context.caller.rank, due_s - spent_s, budget_s - spent_s, tenant.weight,
        tenant.max_queue_rows, own_session, options.repeatable,
        request_id=context.exchange.request_id,
    )  # fmt: skip


def check_tenant_bounds(caller: Caller, lengths: tuple[int, ...]) -> None:
    """Raises BadRequest for what is over the tenant's own limits."""
    bound, most = caller.tenant.max_length, caller.tenant.max_queue_rows
    if most and len(lengths) > most:
        raise errors.BadRequest(
            f"the request has {len(lengths)} rows; this tenant may send {most} at once "
            "(max_queue_rows)"
        )
    if bound is not None and max(lengths) > bound:
        raise errors.BadRequest(
            f"a row is {max(lengths)} long; this tenant's rows may be {bound} long at most "
            "(max_length)"
        )
