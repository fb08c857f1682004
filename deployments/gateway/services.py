"""One request on its way, and what all requests of a gateway share.

A context collects where its request's time went and how it ended, and becomes one record for
metrics and tracing when the request has finished. Time already spent is gone from a demand's
budgets, a session is its tenant's own, lengths are held against the tenant's bounds.

The services answer the questions of the pipeline that are not about one model: who is this, may
anything start, run this off the loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Protocol, TypeVar

from deployments.contract import errors
from deployments.contract.description import ImageInput, Scheduling
from deployments.gateway.http import large_answers
from deployments.gateway.http.body import (
    COMPRESSIONS,
    MIN_BYTES_PER_S,
    SLOW_GRACE_S,
    ArrivingBodies,
    BodyBound,
    BodyLimits,
    BodyRoom,
    Inflation,
)
from deployments.gateway.http.exchange import NO_OPTIONS, Exchange
from deployments.gateway.http.large_answers import AnswerSize
from deployments.gateway.http.protocols.tensors import RegionOutput, RowTensor
from deployments.gateway.models.catalogue import Catalogue
from deployments.gateway.queues.dispatcher_driver import QueueRequest
from deployments.gateway.queues.suspected_requests import SuspectedRequests, Work
from deployments.gateway.reuse.answer_reuse import ReusedAnswers
from deployments.gateway.rows import RowAnswer, Rows
from deployments.gateway.tenancy.fair_thread_pool import FairThreadPool
from deployments.gateway.tenancy.rates import QuotaKey, Rates, SharedBound
from deployments.gateway.tenancy.tenants import Caller, KnownTenants, key_header
from deployments.gateway.tracing import TraceContext
from deployments.preprocess.images import Array, Encoded, prepared, row_bytes
from deployments.preprocess.pairs import IdArray
from deployments.preprocess.tokenizer import TextTokenizer
from deployments.settings.gateway import GatewaySettings
from routers.api.requests import Tokens

ENGINE_REFUSED = "engine_refused"
NO_DEMAND = QueueRequest("", 0, 0.0, 0.0)
_LONGEST_SESSION = 128  # as of `x-session-id`; a gateway remembers many
# Larger bodies are parsed by threads. What one read of a socket brings is parsed on the loop.
POOL_THRESHOLD_BYTES = 65_536
# Texts that are not cached are tokenised on the loop when that is cheaper than asking a thread: a
# hop costs 25 µs when the thread sleeps, 100 characters 20 µs. The rest goes to the pool in turns
# of about a millisecond, so that a request of 2,048 texts is many turns and another tenant's single
# text slips in between. An image of some size is a turn of its own, small ones share one.
INLINE_CHARS = 100
TURN_CHARS = 4096
TURN_TEXTS = 64
TURN_BYTES = 32_768
TURN_IMAGES = 16
Piece = list[tuple[int, str]]
T = TypeVar("T")


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
    requested one, once it is found; `demand`: what it asks of queues. `ran`: rows of it were queued
    and run, for it or an identical request. `reused`: None where its model neither keeps nor shares
    answers."""

    __slots__ = (
        "_last",
        "_last_row",
        "_queued_at",
        "answers",
        "begun",
        "caller",
        "counted",
        "demand",
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
        self.demand = NO_DEMAND
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
        scheduling, budget_s = self.scheduling, self.options.budget_s
        if scheduling is None:
            return False
        if budget_s is None:
            return total_s <= scheduling.slo_s
        return total_s <= scheduling.budget_s(budget_s)

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
    session = options.session or (session if len(session) <= _LONGEST_SESSION else "")
    if options.budget_s is None:
        due_s, budget_s = scheduling.slo_s, scheduling.timeout_s
    else:
        due_s = budget_s = scheduling.budget_s(options.budget_s)
        if scheduling.core.generation is not None:
            due_s = min(scheduling.slo_s, due_s)  # its first token is due before all of its answer
    # Sessions of different tenants are different, whatever their callers name them.
    own_session = f"{tenant.name}/{session}" if session else ""
    return QueueRequest(
        tenant.name, context.caller.rank, due_s - spent_s, budget_s - spent_s, tenant.weight,
        tenant.max_queue_rows, own_session, options.repeatable,
        request_id=context.exchange.request_id, at=monotonic(),
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


def draining() -> errors.Overloaded:
    """What is told to who asks while the server ends."""
    return errors.Overloaded(
        "the server is draining and takes no new requests",
        retry_after_s=errors.NOT_READY_S,
        reason="draining",
    )


class RequestWatcher(Protocol):
    """Hears of every request: when its trace begins, its model is known, it moves to another model
    or version, it has ended, and its engine has stopped behind that."""

    def begin(self, headers: dict[bytes, bytes]) -> TraceContext: ...
    def arrived(self, context: RequestContext) -> None: ...
    def decided(self, context: RequestContext, event: str, decision: str, reason: str) -> None: ...
    def finished(self, context: RequestContext) -> None: ...
    def generated_late(self, context: RequestContext, more: Tokens) -> None: ...


class ExternalData(Protocol):
    """What requests name instead of carrying it, and want written instead of sent."""

    def open_regions(self, folder: Path) -> None:
        """Where this node's table of shared memory is to be, if that is on."""
        ...

    async def fill(self, context: RequestContext, scheduling: Scheduling, call: Any) -> Any:
        """The call with all its external inputs in place, and its outputs' places checked."""
        ...

    async def write(
        self, context: RequestContext, outputs: Sequence[tuple[RegionOutput, RowTensor]]
    ) -> None: ...


class GatewayServices:
    """`watcher` is told exactly once that a request has finished, however it ended. Requests
    under way share their bound by tenant."""

    external: ExternalData  # set by whoever assembles the gateway

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        tenants: KnownTenants,
        models: Catalogue,
        pool: FairThreadPool,
        watcher: RequestWatcher,
    ) -> None:
        limits = settings.limits
        self.models = models
        self.limits = BodyLimits(
            limits.max_body_bytes,
            limits.max_inflated_bytes,
            limits.body_timeout_s,
            BodyRoom(limits.max_held_bytes),
            arriving=ArrivingBodies(limits.max_arriving_bodies),
            min_bytes_per_s=MIN_BYTES_PER_S,
            grace_s=SLOW_GRACE_S,
        )
        self.rates = Rates(settings.replicas)
        self.suspected = SuspectedRequests()
        self.watcher = watcher
        self.pool = pool
        self._tenants = tenants
        self.on_loop_bytes = POOL_THRESHOLD_BYTES
        self._under_way = SharedBound(limits.max_requests)
        self._max_answer_bytes = max(large_answers.MAX_HELD_BYTES, limits.max_body_bytes)

    def identify(self, exchange: Exchange) -> Caller:
        """Raises Unauthorized, or BadRequest for a priority nobody knows."""
        tenants = self._tenants.current
        caller = tenants.identify(
            key_header(exchange.headers) if tenants.need_keys else None,
            exchange.headers.get(b"x-tenant"),
            exchange.headers.get(b"x-priority"),
        )
        exchange.quota_key = caller.tenant.name, caller.tenant.weight
        return caller

    def check_key(self, caller: Caller) -> None:
        """Raises Unauthorized where the caller's key has ended since it came."""
        if not self._tenants.current.still_opens(caller.tenant):
            raise errors.Unauthorized("the API key has ended meanwhile", reason="key_ended")

    def begin(self, quota_key: QuotaKey) -> None:
        """One more request is under way, until `end`. Raises Overloaded."""
        if self.models.draining:
            raise draining()
        if not self._under_way.fits(quota_key, 1):
            raise errors.Overloaded(
                "the gateway has all the requests under way that it may have "
                "(gateway.limits.max_requests)",
                retry_after_s=errors.SOON_S,
                reason="gateway_full",
            )
        self._under_way.add(quota_key, 1)

    @property
    def under_way(self) -> int:
        return self._under_way.used

    def end(self, quota_key: QuotaKey) -> None:
        self._under_way.give(quota_key, 1)

    def read_body(
        self, exchange: Exchange, declared: int | None, bound: Callable[..., BodyBound], *of: Any
    ) -> Awaitable[bytes | memoryview]:
        """The whole body, as it was sent. `declared`: its length, by its header; `bound(*of)`: of
        what the model could take, where a body may be large. Raises as `Exchange.body`, and
        UnsupportedMedia."""
        encoding = exchange.encoding
        if encoding == b"identity" and declared is not None and declared <= self.on_loop_bytes:
            return exchange.body(self.limits)
        if encoding not in COMPRESSIONS and encoding != b"identity":
            raise errors.UnsupportedMedia("Content-Encoding must be gzip, deflate or identity")
        limits = self.limits.within(bound(*of))
        exchange.check_length(limits)
        return exchange.body(limits)

    async def inflated(
        self,
        exchange: Exchange,
        caller: Caller,
        body: bytes | memoryview,
        bound: Callable[..., BodyBound],
        *of: Any,
    ) -> bytes:
        """Of a body that was sent compressed. Each step is a turn of the tenant's in the pool;
        memory is taken once its size is known."""
        size = bound(*of)
        inflation = Inflation(body, self.limits.within(size), size, exchange.encoding)
        while not inflation.is_measured:
            await self.pool.run(caller.tenant.name, inflation.measure)
        exchange.hold(inflation.size_bytes, self.limits.room)
        return await self.pool.run(caller.tenant.name, inflation.take)

    def hold_answer(self, exchange: Exchange, size: AnswerSize, rows: Rows) -> None:
        """The memory of an answer, before it is there. Raises BadRequest for one that is too large,
        and Overloaded."""
        large_answers.check(size, rows, self._max_answer_bytes)
        exchange.hold_answer(large_answers.held_at_once(size), self.limits.room)

    async def off_loop(
        self, caller: Caller, size_bytes: int, function: Callable[..., T], *args: Any
    ) -> T:
        """`function(*args)`: here for a small input, else in the pool, in the tenant's turn."""
        if size_bytes <= self.on_loop_bytes:
            return function(*args)
        return await self.pool.run(caller.tenant.name, function, *args)

    async def tokenize(
        self, caller: Caller, tokenizer: TextTokenizer, texts: list[str]
    ) -> list[Any]:
        return await encode_texts(self.pool, caller.tenant.name, tokenizer, texts)

    async def prepare_images(
        self, context: RequestContext, how: ImageInput, images: Sequence[Encoded]
    ) -> list[Any]:
        """As rows of the model's input, whose memory counts as the body's does."""
        assert context.caller is not None
        context.exchange.hold(len(images) * row_bytes(how), self.limits.room)
        return await prepare_images(self.pool, context.caller.tenant.name, how, images)


async def encode_texts(
    pool: FairThreadPool, tenant: str, tokenizer: TextTokenizer, texts: Sequence[str]
) -> list[IdArray]:
    """int64 ids of each text, in order. Raises `BadRequest`, and `Overloaded` by a full pool."""
    encoded = tokenizer.cached(texts, tenant)
    missing = [(index, texts[index]) for index, ids in enumerate(encoded) if ids is None]
    if not missing:
        return [ids for ids in encoded if ids is not None]
    if sum(len(text) for _, text in missing) <= INLINE_CHARS:
        fresh = iter(tokenizer.tokenize(missing, tenant))
    else:
        tokenize = partial(tokenizer.tokenize, tenant=tenant)
        turns = await pool.run_each(tenant, tokenize, list(text_turns(missing)))
        fresh = (ids for turn in turns for ids in turn)
    return [ids if ids is not None else next(fresh) for ids in encoded]


def text_turns(texts: Sequence[tuple[int, str]]) -> Iterator[Piece]:
    """Cuts into turns: at most `TURN_TEXTS` texts and, but for a single text, `TURN_CHARS`."""
    piece: Piece = []
    chars = 0
    for item in texts:
        if piece and (len(piece) == TURN_TEXTS or chars + len(item[1]) > TURN_CHARS):
            yield piece
            piece, chars = [], 0
        piece.append(item)
        chars += len(item[1])
    if piece:
        yield piece


async def prepare_images(
    pool: FairThreadPool, tenant: str, how: ImageInput, images: Sequence[Encoded]
) -> list[Array]:
    """One row an image, of the model's datatype and of the shape of one of its sizes, in order.
    Raises `BadRequest`, and `Overloaded` by a full pool."""

    def turn(piece: list[tuple[int, Encoded]]) -> list[Array]:
        return [prepared(how, image, f"image {index}") for index, image in piece]

    turns = await pool.run_each(tenant, turn, list(_image_turns(images)))
    return [row for rows in turns for row in rows]


def _image_turns(images: Sequence[Encoded]) -> Iterator[list[tuple[int, Encoded]]]:
    piece: list[tuple[int, Encoded]] = []
    size = 0
    for index, image in enumerate(images):
        own = len(image) if isinstance(image, bytes) else image.nbytes
        if piece and (len(piece) == TURN_IMAGES or size + own > TURN_BYTES):
            yield piece
            piece, size = [], 0
        piece.append((index, image))
        size += own
    if piece:
        yield piece
