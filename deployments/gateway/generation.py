"""The way of a request whose answer flows: from its prompt's length to the last server-sent event.

Goes on where `pipeline` has found out who asks for what. The prompt is measured off the loop, the
request waits in the model's queue of streams, and what its replica brings is passed on at once. The
answer's head is sent with its first piece, so that whatever goes wrong before that has a status of
its own; afterwards an event in OpenAI's shape says so, and no `[DONE]` follows. A client that
leaves has its run aborted, one that does not read loses its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from time import monotonic

from deployments.contract import errors
from deployments.contract.description import ModelDescription
from deployments.contract.preprocess.tokenizer import TextTokenizer
from deployments.gateway.http.exchange import Exchange, unless_left
from deployments.gateway.http.protocols import openai_generation
from deployments.gateway.http.protocols.openai_generation import GenerationCall
from deployments.gateway.http.protocols.types import Encoded
from deployments.gateway.preprocess.prompts import Ids, prompt_of, pseudo_ids, too_many
from deployments.gateway.queues.pending_requests import StreamTicket
from deployments.gateway.request_context import (
    GatewayServices,
    Generated,
    RequestContext,
    check_own_bounds,
    demand_of,
)
from deployments.gateway.reuse.fallback import ModelSelection
from deployments.gateway.tenancy.rates import Rates
from deployments.gateway.tenancy.tenants import Tenant

STALL_S = 60.0  # a client that takes nothing for so long is gone
_SSE = b"text/event-stream; charset=utf-8"
_UNBUFFERED = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
_OK = 200
_BODY_BYTES, _BYTES_PER_TOKEN = 4 << 20, 64
_WORD = "a"


async def generate(
    gate: GatewayServices, flight: RequestContext, way: ModelSelection, call: GenerationCall
) -> None:
    """Answers the request, by the model of `way`. Raises what it could not be answered for; once
    its head is out, after telling the client."""
    who, model = flight.who, way.model
    assert who is not None
    # From here on by one version's page and terms, even if another goes live meanwhile.
    streams, page = model.streams, model.description
    terms = streams.terms
    way.check_meaning(texts=call.texts is not None, named=False)
    if call.adapter:
        way.only_asked()
    _check_size(call, page)
    # How long: off the loop, tenants in turn; what cannot fit into the context is refused.
    ids = await _ids(gate, flight, call, model.tokenizer, page)
    prompt = prompt_of(_as_sent(call, way, page), ids, page)
    # The tenant's own limits, as soon as lengths are known: its bound, its rate of tokens.
    check_own_bounds(who, (prompt.tokens,))
    if not flight.counted:
        gate.rates.take_tokens(who.tenant, prompt.total_tokens)
        flight.counted = True
    flight.mark("tokenize")
    # Queue: bounded, by the deadline of the first token; what comes is passed on behind this line.
    flight.waits()
    ticket = streams.submit(prompt, terms, demand_of(flight, way.promise, call.user))
    left = partial(streams.cancel, ticket)
    try:
        bill = _Bill(gate.rates, who.tenant, ticket)
        await unless_left(flight.exchange, _relay(flight, way, ticket, bill), left)
    finally:
        left()  # nothing, once the answer is whole


def _check_size(call: GenerationCall, page: ModelDescription) -> None:
    """The engine parses all of a body on the loop that its steps are handed on by."""
    assert page.generating is not None
    most = _BODY_BYTES + _BYTES_PER_TOKEN * page.generating.cache_tokens
    if len(call.body) > most:
        raise errors.BodyTooLarge(
            f"the body has {len(call.body)} bytes; for what this model can hold {most} are enough"
        )


async def _ids(
    gate: GatewayServices,
    flight: RequestContext,
    call: GenerationCall,
    tokenizer: TextTokenizer | None,
    page: ModelDescription,
) -> Sequence[Ids]:
    if call.texts is None:
        return call.tokens or ()
    # The engine reads the end of a prompt that it is to cut: its beginning is nothing to go by.
    if tokenizer is None or call.truncate_tokens is not None:
        return pseudo_ids(call.texts)
    assert flight.who is not None
    # Of nothing but space an engine may make a prompt all the same: it is the judge of that. Here
    # a word stands in for it, so that a refusal counts the texts as the caller does.
    texts = [text if text.strip() else _WORD for text in call.texts]
    try:
        found = await gate.tokenize(flight.who, tokenizer, texts)
    except errors.TooManyTokens as refusal:
        raise too_many(call, refusal, page) from None
    except errors.BadRequest as refusal:
        said = refusal.message.replace("input[", f"{call.param}[")
        raise errors.BadRequest(said, param=call.param) from None
    return [ids if text.strip() else [] for ids, text in zip(found, call.texts, strict=True)]


def _as_sent(call: GenerationCall, way: ModelSelection, page: ModelDescription) -> GenerationCall:
    """The caller's own bytes, but for what the engine could not know: that another model takes it,
    and how much it may write where the caller does not say."""
    changes: dict[str, str | int] = {}
    if way.fallback:
        changes["model"] = way.fallback
    if call.max_tokens is None and page.scheduling.max_output_tokens:
        changes["max_tokens"] = page.scheduling.max_output_tokens
    return openai_generation.with_fields(call, changes) if changes else call


class _Bill:
    """Output tokens, counted at the tenant's rate as they come."""

    def __init__(self, rates: Rates, tenant: Tenant, ticket: StreamTicket) -> None:
        self._rates, self._tenant, self._ticket = rates, tenant, ticket
        self._counted = 0

    def count(self) -> None:
        so_far = self._ticket.tokens.output
        if so_far > self._counted:
            self._rates.spend(self._tenant, so_far - self._counted)
            self._counted = so_far


async def _relay(
    flight: RequestContext, way: ModelSelection, ticket: StreamTicket, bill: _Bill
) -> None:
    exchange = flight.exchange
    try:
        first = await ticket.next()
        flight.began(ticket.dispatched_at, way.fallback)
        if ticket.prompt.streams and ticket.status == _OK:
            await exchange.start_stream(_SSE, [*_UNBUFFERED, *flight.headers(None)])
            await _flow(exchange, flight, ticket, first, bill)
        else:
            await _whole(exchange, flight, ticket, first)
    finally:
        bill.count()
        if ticket.tokens.input:
            flight.generated = _generated(flight, way, ticket)
    flight.mark("reply")


async def _whole(
    exchange: Exchange, flight: RequestContext, ticket: StreamTicket, first: bytes
) -> None:
    """An answer that is not streamed, or the engine's own refusal."""
    parts = [first]
    while parts[-1]:
        parts.append(await ticket.next())
    body = b"".join(parts)
    if not body:
        raise errors.RowFailed("the engine ended without an answer", retry_after_s=1.0)
    flight.service_s, flight.response_bytes = ticket.service_s, len(body)
    if ticket.status != _OK:
        flight.refused_by_engine(ticket.status)
    await exchange.reply(ticket.status, Encoded(body), flight.headers(None))


async def _flow(
    exchange: Exchange, flight: RequestContext, ticket: StreamTicket, first: bytes, bill: _Bill
) -> None:
    data = first
    try:
        while data:
            flight.response_bytes += len(data)
            await _send(exchange, data)
            bill.count()
            data = await ticket.next()
    except (errors.CallerLeft, errors.ReaderTooSlow):
        raise  # nobody reads what would be said
    except errors.HeadraceError as error:
        await _send(exchange, openai_generation.error_event(error))
        await _in_time(exchange.end_stream())
        raise
    await _in_time(exchange.end_stream())


async def _send(exchange: Exchange, data: bytes) -> None:
    await _in_time(exchange.send_chunk(data))


async def _in_time(sending: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(STALL_S):
            await sending
    except TimeoutError:
        raise errors.ReaderTooSlow(f"nothing was read for {STALL_S:g} s") from None


def _generated(flight: RequestContext, way: ModelSelection, ticket: StreamTicket) -> Generated:
    tokens, now = ticket.tokens, monotonic()
    ttft_s = flight.age_s() - (now - ticket.first_at) if ticket.first_at else None
    tpot_s = None
    if tokens.output > 1:
        tpot_s = (ticket.last_at - ticket.first_at) / (tokens.output - 1)
    return Generated(tokens, ttft_s, tpot_s, ticket.prompt.streams, way.promise)
