"""How is a request that generates answered, from its prompt's length to the last server-sent event?

Goes on where `pipeline` knows the caller and the model. The prompt is measured off the event loop,
the request waits in the model's `StreamQueue`, and what its replica sends is passed on at once.
- The answer's head is sent with its first piece, so that an error before that has a status of its
  own. A later error becomes an event in the API's shape, which says what is paid; no `[DONE]`.
- A client that leaves has its run aborted. A client that does not read loses its answer.
- A prompt that was on a lost replica waits for a permit (`suspect_permits`): such prompts run one
  at a time, or never.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from time import monotonic

from msgspec.structs import replace

from deployments.contract import errors
from deployments.contract.description import ModelDescription
from deployments.gateway.http.body import bound_of
from deployments.gateway.http.exchange import Exchange, run_until_disconnect
from deployments.gateway.http.protocols import error_shapes, openai_generation
from deployments.gateway.http.protocols.openai_generation import GenerationCall
from deployments.gateway.http.protocols.tensors import Encoded
from deployments.gateway.prompts import Ids, prompt_of, pseudo_ids, too_many
from deployments.gateway.queues.pending_requests import PendingStreamRequest, Prompt
from deployments.gateway.queues.suspect_permits import Permit
from deployments.gateway.rollout.model_selection import ModelSelection
from deployments.gateway.services import (
    ENGINE_REFUSED,
    GatewayServices,
    Generated,
    RequestContext,
    check_tenant_bounds,
    queue_request,
)
from deployments.gateway.tenancy.tenants import Caller
from deployments.preprocess.tokenizer import TextTokenizer
from routers.api.requests import Tokens

CHECKS_KEY_S = 5.0  # how often a stream's API key is checked; it ends with the next token
STALL_S = 60.0  # a client that reads nothing for so long loses its answer
_SSE = b"text/event-stream; charset=utf-8"
_UNBUFFERED = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
_OK = 200
_WORD = "a"  # see `_ids`


async def generate(
    services: GatewayServices,
    context: RequestContext,
    selection: ModelSelection,
    call: GenerationCall,
) -> None:
    """Answer the request by the selected model. Raises what kept it from an answer; once the
    answer's head was sent, after the client has been told."""
    caller, model = context.caller, selection.model
    assert caller is not None
    # From here on this version's description and terms, even if another version goes live
    # meanwhile.
    streams, description = model.streams, model.description
    terms = streams.terms
    context.version = description.version
    selection.check_same_meaning(texts=call.texts is not None, named=False)
    if call.adapter or not call.generates:
        selection.require_requested()
    known = () if description.generating is None else description.generating.adapters
    if call.adapter and call.adapter not in known:
        raise services.models.missing(f"{call.model}:{call.adapter}")
    _check_size(call, description)
    # Lengths: measured off the event loop, tenants in turn. A prompt that cannot fit into the
    # model's context is refused.
    ids = await _ids(services, context, call, model.tokenizer, description)
    sent = _as_sent(call, selection, description)
    key = await services.off_loop(
        caller, len(sent.body), openai_generation.fingerprint, sent, description.version
    )
    prompt = prompt_of(sent, ids, description, caller.tenant.name, key)
    # The tenant's own limits, as soon as lengths are known: its bound, and its rate of tokens,
    # which a request that comes to a fallback has paid already.
    check_tenant_bounds(caller, (prompt.tokens,))
    if context.counted is None:
        services.rates.take_tokens(caller.tenant, prompt.total_tokens)
        context.counted = prompt.total_tokens
    context.mark("tokenize")
    # Prompts that have ended replicas are refused; prompts that may have ended one run one at a
    # time.
    async with permit_of(context, selection, key) as permit:
        # Queue: bounded; the deadline is the first token's. Behind it the answer is passed on.
        context.queued()
        selection.begins()
        demand = selection.asks(queue_request(context, selection.scheduling, call.user))
        with _recorded(selection, caller.tenant.name, prompt) as record:
            pending = streams.submit(prompt, terms, replace(demand, suspect=permit is not None))
            record(pending)
            pending.permit = permit
            selection.submitted(pending)
            left = partial(streams.cancel, pending)
            try:
                meter = _TokenMeter(services, caller, pending, context.counted)
                await run_until_disconnect(
                    context.exchange, _relay(services, context, selection, pending, meter), left
                )
            finally:
                left()  # no effect once the answer is whole


@contextmanager
def _recorded(
    selection: ModelSelection, tenant: str, prompt: Prompt
) -> Iterator[Callable[[PendingStreamRequest], None]]:
    """Records the request's lengths when it ends, however it ends, where settings ask for that. To
    be called with the pending request once that is queued."""
    recorder = selection.lengths_recorder
    at = 0.0 if recorder is None else recorder.now()
    queued: list[PendingStreamRequest] = []
    try:
        yield queued.append
    finally:
        if recorder is not None:
            tokens = queued[0].tokens if queued else Tokens()
            recorder.generated(tenant, at, tokens.input or prompt.tokens, tokens.output)


def _check_size(call: GenerationCall, description: ModelDescription) -> None:
    """Raises the error of a body that is too large. The engine would parse all of it on the event
    loop that also hands on the steps of every other request there."""
    bound_of(description, numbers=False).check_bytes(len(call.body))


async def _ids(
    services: GatewayServices,
    context: RequestContext,
    call: GenerationCall,
    tokenizer: TextTokenizer | None,
    description: ModelDescription,
) -> Sequence[Ids]:
    """The token ids of each prompt, as far as the gateway can tell; none of one that is only
    counted. Raises BadRequest."""
    if not call.generates:
        return ()
    if call.texts is None:
        return call.tokens or ()
    # The engine keeps the end of a prompt that it is asked to cut, so the tokens of the prompt's
    # beginning would tell nothing.
    if tokenizer is None or call.truncate_tokens is not None:
        return pseudo_ids(call.texts)
    assert context.caller is not None
    # A text of nothing but space may be a prompt to the engine, which decides that. The tokeniser
    # would refuse it, so a word stands in for it: then a refusal of another text still names it by
    # the caller's own index.
    texts = [text if text.strip() else _WORD for text in call.texts]
    try:
        encoded = await services.tokenize(context.caller, tokenizer, texts)
    except errors.TooManyTokens as refusal:
        raise too_many(call, refusal, description) from None
    except errors.BadText as refusal:
        raise refusal.named(f"{call.param}[{refusal.index}]") from None
    return [ids if text.strip() else [] for ids, text in zip(encoded, call.texts, strict=True)]


def _as_sent(
    call: GenerationCall, selection: ModelSelection, description: ModelDescription
) -> GenerationCall:
    """The call as it is sent to the engine: the caller's own bytes, but for what the engine could
    not know. That is the model's own name, where the caller said an alias or a fallback answers,
    and how many tokens it may write and what else counts where the caller does not say."""
    changes: dict[str, str | int] = dict(call.defaults)
    name = f"{description.name}:{call.adapter}" if call.adapter else description.name
    if call.model != description.name:
        changes["model"] = name
    if call.max_tokens is None and call.generates and description.scheduling.max_output_tokens:
        changes[call.most] = description.scheduling.max_output_tokens
    return openai_generation.with_fields(call, changes) if changes else call


class _TokenMeter:
    """Counts a stream's tokens at its tenant's rate as they come, and checks whether the caller's
    key still holds."""

    def __init__(
        self,
        services: GatewayServices,
        caller: Caller,
        pending: PendingStreamRequest,
        read: int,  # tokens of the prompt that were counted before the engine reported its count
    ) -> None:
        self._services, self._caller, self._pending = services, caller, pending
        self._read, self._written = read, 0
        self._checks_at = monotonic() + CHECKS_KEY_S

    def count(self) -> None:
        """Count what has come since the last call, and correct the prompt's count once the engine
        has reported its own."""
        rates, tenant, tokens = self._services.rates, self._caller.tenant, self._pending.tokens
        if tokens.input and tokens.input != self._read:
            rates.reconcile(tenant, tokens.input - self._read)
            self._read = tokens.input
        if tokens.output > self._written:
            rates.spend(tenant, tokens.output - self._written)
            self._written = tokens.output

    def check_key(self) -> None:
        """Raises Unauthorized if the caller's key has ended; looked up every `CHECKS_KEY_S`."""
        now = monotonic()
        if now >= self._checks_at:
            self._checks_at = now + CHECKS_KEY_S
            self._services.check_key(self._caller)


async def _relay(
    services: GatewayServices,
    context: RequestContext,
    selection: ModelSelection,
    pending: PendingStreamRequest,
    meter: _TokenMeter,
) -> None:
    """Send the client what comes of its request, and record how it went."""
    exchange, caller = context.exchange, context.caller
    assert caller is not None
    try:
        first = await pending.next()
        if pending.status != _OK and selection.on_canary:
            raise _engine_refusal(selection, pending.status)
        context.stream_began(pending.dispatched_at, selection.fallback)
        if pending.prompt.streams and pending.status == _OK:
            await exchange.start_stream(_SSE, [*_UNBUFFERED, *context.headers(None)])
            await _send_stream(exchange, context, pending, first, meter)
        else:
            await _send_whole(services, context, pending, first)
        if pending.status == _OK:
            selection.answered(
                caller.rank,
                (pending.prompt.tokens,),
                _first_token_s(pending),
                token_s=_token_s(pending),
            )
        elif selection.assignment is not None:
            selection.failed(_engine_refusal(selection, pending.status))
    finally:
        meter.count()
        if pending.tokens.input:
            context.generated = _generated(context, selection, pending)
        pending.counts_late = partial(_count_late, services, context, meter)
    context.mark("reply")


def _count_late(
    services: GatewayServices, context: RequestContext, meter: _TokenMeter, more: Tokens
) -> None:
    """An engine makes a step or two before it hears that the answer has ended early."""
    meter.count()
    services.watcher.generated_late(context, more)


def _engine_refusal(selection: ModelSelection, status: int) -> errors.HeadraceError:
    """The error for an engine's own refusal. A canary's refusal is told to the caller only if the
    live version refuses as well."""
    if status < 500:
        selection.submitted(None)  # the engine calls the request bad: nothing of it has run
    known = errors.BadRequest if status < 500 else errors.RowFailed
    return known(f"the engine answered {status}", reason=ENGINE_REFUSED)


def _first_token_s(pending: PendingStreamRequest) -> float | None:
    """Seconds from its arrival in the queue to its first token; None: none has come."""
    return pending.first_at - pending.request.arrival if pending.first_at else None


def _token_s(pending: PendingStreamRequest) -> float | None:
    """Mean seconds from one output token to the next; None: there are fewer than two."""
    if pending.tokens.output < 2:
        return None
    return (pending.last_at - pending.first_at) / (pending.tokens.output - 1)


async def _send_whole(
    services: GatewayServices, context: RequestContext, pending: PendingStreamRequest, first: bytes
) -> None:
    """Send an answer that is not streamed, or the engine's own refusal, once it is whole."""
    parts = [first]
    while parts[-1]:
        parts.append(await pending.next())
    body = b"".join(parts)
    if not body:
        raise errors.RowFailed(
            "the engine returned no answer; send the request again", retry_after_s=errors.SOON_S
        )
    context.service_s, context.response_bytes = pending.service_s, len(body)
    if pending.status != _OK:
        context.refused_by_engine(pending.status)
        request_id = context.exchange.request_id.decode("latin-1")
        body = error_shapes.of_engine(pending.prompt.endpoint, pending.status, body, request_id)
    answer, room = Encoded(body), services.limits.room
    await context.exchange.reply(pending.status, answer, context.headers(None), room)


async def _send_stream(
    exchange: Exchange,
    context: RequestContext,
    pending: PendingStreamRequest,
    first: bytes,
    meter: _TokenMeter,
) -> None:
    """Send an answer piece by piece. An error ends it with an event, and is raised."""
    data = last = first
    try:
        while data:
            last = data
            context.response_bytes += len(data)
            await _send(exchange, data)
            meter.count()
            meter.check_key()
            data = await pending.next()
    except (errors.CallerLeft, errors.ReaderTooSlow):
        raise  # nobody would read an event
    except errors.HeadraceError as error:
        error.request_id = exchange.request_id.decode("latin-1")
        endpoint, tokens = pending.prompt.endpoint, pending.tokens
        paid = error_shapes.Paid(tokens.input, tokens.cached, tokens.output)
        await _send(exchange, error_shapes.event(endpoint, error, paid, first, last))
        await _in_time(exchange.end_stream())
        raise
    await _in_time(exchange.end_stream())


async def _send(exchange: Exchange, data: bytes) -> None:
    await _in_time(exchange.send_chunk(data))


async def _in_time(sending: Awaitable[None]) -> None:
    """Raises ReaderTooSlow if it takes more than `STALL_S`."""
    try:
        async with asyncio.timeout(STALL_S):
            await sending
    except TimeoutError:
        raise errors.ReaderTooSlow(f"the client read nothing for {STALL_S:g} s") from None


def _generated(
    context: RequestContext, selection: ModelSelection, pending: PendingStreamRequest
) -> Generated:
    """What the request has been given, for metrics and tracing."""
    tokens, now = pending.tokens, monotonic()
    ttft_s = context.age_s() - (now - pending.first_at) if pending.first_at else None
    return Generated(
        tokens,
        ttft_s,
        _token_s(pending),
        pending.prompt.streams,
        selection.scheduling,
        pending.replica_id,
        pending.repeats,
    )


_WAIT_SHARE = 0.5  # of a suspect's remaining time that it may wait for its permit


@asynccontextmanager
async def permit_of(
    context: RequestContext, selection: ModelSelection, key: bytes
) -> AsyncIterator[Permit | None]:
    """The permit of a prompt with this fingerprint; None: it is no suspect. A prompt is a suspect
    if a replica, also a canary's, was lost with it. Raises RowQuarantined, OverOwnLimit,
    CallerLeft."""
    permit = await _permit_if_suspect(context, selection, key)
    try:
        if permit is not None:
            _is_suspect(context, selection, key)  # it may have been quarantined while it waited
        yield permit
    finally:
        if permit is not None:
            permit.release()


async def _permit_if_suspect(
    context: RequestContext, selection: ModelSelection, key: bytes
) -> Permit | None:
    streams, caller = selection.model.streams, context.caller
    assert caller is not None
    tenant = caller.tenant.name
    if selection.lost_at_canary:
        streams.crashes.lost_elsewhere([key], tenant, monotonic())
    if not streams.crashes or not _is_suspect(context, selection, key):
        return None
    budget_s = queue_request(context, selection.scheduling).budget_s
    limit_s = min(streams.crashes.terms.hold_s, _WAIT_SHARE * budget_s)
    return await _acquired(context.exchange, streams.permits.acquire(tenant, limit_s))


def _is_suspect(context: RequestContext, selection: ModelSelection, key: bytes) -> bool:
    """Whether a replica was lost with this prompt. Raises RowQuarantined, OverOwnLimit."""
    assert context.caller is not None
    crashes = selection.model.streams.crashes
    return crashes.check([key], context.caller.tenant.name, monotonic())


async def _acquired(exchange: Exchange, acquire: Coroutine[None, None, Permit]) -> Permit:
    """Wait for the permit. Raises CallerLeft."""
    waits = asyncio.ensure_future(acquire)

    def left() -> None:
        waits.cancel()

    try:
        return await run_until_disconnect(exchange, waits, left)
    except asyncio.CancelledError:
        if waits.done() and not waits.cancelled():
            waits.result().release()  # the permit came after its caller had left
        own = asyncio.current_task()
        if own is not None and own.cancelling():
            raise
        raise errors.CallerLeft("the client disconnected") from None
