"""A request's way, on one page.

`answer` takes a request from its headers to its reply, in the one order that is cheap under load:
what can be refused by headers is refused before a body is read, what is heavy leaves the event
loop, what waits waits in the model's queue and nowhere else. Stages are functions of their own
modules; this one only orders them and says why. Waiting rows are let in, ordered, batched, placed
and raced by the model's dispatcher (`routers/`), which sees tenants, lengths and deadlines. How a
prompt goes on once it is known whose it is and for which model, `generation` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from deployments.contract import errors
from deployments.contract.description import ModelDescription
from deployments.gateway.generation import generate
from deployments.gateway.http.body import MOST_INFLATION, BodyLimits, inflate
from deployments.gateway.http.codecs import Codec, GenerationCodec
from deployments.gateway.http.exchange import Exchange, unless_left
from deployments.gateway.queues.core_loop import Demand, Terms
from deployments.gateway.queues.pending_requests import Ticket
from deployments.gateway.queues.served_model import ServedModel
from deployments.gateway.request_context import (
    GatewayServices,
    RequestContext,
    check_own_bounds,
    demand_of,
)
from deployments.gateway.reuse.answer_reuse import Wanted, sharing
from deployments.gateway.reuse.fallback import ModelSelection
from deployments.gateway.reuse.response_cache import row_keys
from deployments.gateway.reuse.single_flight import Follower
from deployments.gateway.rows.types import RowAnswer, Rows
from deployments.gateway.tenancy.tenants import Caller

T = TypeVar("T")


class Pipeline:
    """`gate` holds what all requests share: tenants, models, the preprocessing pool, limits."""

    def __init__(self, gate: GatewayServices) -> None:
        self._gate = gate

    async def answer(
        self,
        exchange: Exchange,
        codec: Codec | GenerationCodec,
        name: str | None,
        version: str | None = None,
    ) -> None:
        """`name` None: the body names the model. Every ending is one reply and one record."""
        watcher = self._gate.watcher
        flight = RequestContext(exchange, codec.label, watcher.begin(exchange.headers))
        try:
            await self._walk(flight, codec, name, version)
        except errors.HeadraceError as error:
            flight.failed(error)
            if not isinstance(error, errors.CallerLeft) and not exchange.replied:
                await exchange.reply(error.status, codec.error(error), flight.headers(error))
        except asyncio.CancelledError:
            flight.failed(errors.CallerLeft("the client left"))
            raise
        except Exception:
            flight.failed(errors.HeadraceError("unexpected"))
            raise
        finally:
            watcher.finished(flight)

    async def _walk(
        self,
        flight: RequestContext,
        codec: Codec | GenerationCodec,
        name: str | None,
        version: str | None,
    ) -> None:
        gate, exchange = self._gate, flight.exchange
        # Who, first: it costs a header, and all that follows is somebody's.
        who = flight.who = gate.identify(exchange)
        # Draining: nothing new may start, or the drain never ends.
        gate.check_open()
        # Which model, when the URL says it: 404 and 503 before the body is read. One that is not
        # ready may name a cheaper one, which then takes its place.
        way = None if name is None else self._way(flight, who, name, version)
        # Cheap refusals: headers that make no sense, the tenant's rate of requests, declared size,
        # a queue that is full already or has just refused the like of it.
        flight.asked = exchange.asked()
        gate.rates.take_request(who.tenant)
        exchange.check_length(gate.limits)
        if way is not None:
            way.check_room(demand_of(flight, way.promise))
        # The body, bounded in size and time; inflated off the loop.
        body = await self._body(exchange, who)
        # Parse: small bodies at once, large ones in the pool, tenants in turn.
        page = way and way.model.description
        flight.request_bytes = len(body)
        call = await gate.off_loop(who, len(body), codec.decode, body, exchange, page)
        if way is None:
            way = self._way(flight, who, call.model, None)
            way.check_room(demand_of(flight, way.promise))
        flight.mark("parse")
        if isinstance(codec, GenerationCodec):
            # A prompt's answer flows, from the model or the cheaper one: `generation`'s page.
            await _by_either(flight, way, lambda: generate(gate, flight, way, call))
            return
        done = await _by_either(flight, way, lambda: self._answered(flight, way, codec, call))
        flight.done(done.answers, way.fallback)
        # Reply, as the model that ran.
        page = _as_answered(done.page, version, done.answers)
        encoded = codec.encode(call, done.rows, done.answers, page)
        flight.response_bytes = len(encoded.body)
        await exchange.reply(200, encoded, flight.headers(None))
        flight.mark("reply")

    async def _answered(
        self, flight: RequestContext, way: ModelSelection, codec: Codec, call: Any
    ) -> _Answered:
        gate, who, model = self._gate, flight.who, way.model
        assert who is not None
        # From here on by one version's page and terms, even if another goes live meanwhile.
        page, terms = model.description, model.batches.terms
        texts = codec.texts(call)
        way.check_meaning(texts=texts is not None, named=codec.names_tensors)
        # How long: tokenise texts, decode and resize images, off the loop; rows get their lengths,
        # too long ones are refused.
        images = codec.images(call, page)
        tokens = None if texts is None else await self._tokens(texts, model, who)
        if images is not None and page.image is not None:
            tokens = await gate.prepare_images(flight, page.image, images)
        rows = await gate.off_loop(who, flight.request_bytes, codec.split, call, tokens, page)
        # The tenant's own limits, as soon as lengths are known: its bounds, its rate of tokens.
        check_own_bounds(who, rows.lengths)
        if not flight.counted:
            gate.rates.take_tokens(who.tenant, sum(rows.lengths))
            flight.counted = True
        flight.mark("tokenize")
        # Kept only where the settings say so; before the cache, which hides what is asked often.
        if model.recorder is not None and who.tenant.record:
            model.recorder.offer(who.tenant.name, rows)
        submit, rungs = partial(self._submit, flight, way, terms), model.rungs
        if rungs is None:
            # Queue: bounded, by deadline; late binding happens behind this line.
            ticket = submit(rows)
            left = partial(model.batches.cancel, ticket)
            flight.waits()
            answers = await unless_left(flight.exchange, ticket.future, left)
            return _Answered(page, rows, answers)
        # What need not run comes first: rows answered before, then an identical request's run. The
        # queue gets what is left, and whoever was there first waits in it for all.
        wanted = await self._wanted(flight, page, rows)
        seat = _seat(demand_of(flight, way.promise), rows.count)
        flight.waits()
        spared = rungs.answers(wanted, seat, submit)
        found = await unless_left(flight.exchange, spared, seat.leave)
        flight.found(found)
        return _Answered(page, rows, found.answers)

    def _way(
        self, flight: RequestContext, who: Caller, name: str, version: str | None
    ) -> ModelSelection:
        if not who.tenant.may_use(name):
            raise errors.Forbidden("this tenant may not use this model", param="model")
        way = ModelSelection(self._gate.models, who.tenant, name, version)
        flight.model = name
        self._gate.watcher.arrived(flight)
        return way

    async def _body(self, exchange: Exchange, who: Caller) -> bytes:
        limits: BodyLimits = self._gate.limits
        body = await exchange.body(limits)
        encoding = exchange.headers.get(b"content-encoding", b"identity").lower()
        if encoding == b"identity":
            return body
        if encoding != b"gzip":
            raise errors.UnsupportedMedia("Content-Encoding must be gzip or identity")
        inflated: bytes = await self._gate.off_loop(
            who, len(body) * MOST_INFLATION, inflate, body, limits.max_inflated_bytes
        )
        exchange.hold(len(inflated), limits.room)
        return inflated

    async def _tokens(self, texts: list[str], model: ServedModel, who: Caller) -> list[Any]:
        if model.tokenizer is None:
            raise errors.BadRequest(
                f"model {model.description.name} has no tokeniser; send token ids instead of text"
            )
        return await self._gate.tokenize(who, model.tokenizer, texts)

    async def _wanted(self, flight: RequestContext, page: ModelDescription, rows: Rows) -> Wanted:
        who, exchange = flight.who, flight.exchange
        assert who is not None
        names = [spec.name for spec in page.outputs]
        keys = await self._gate.off_loop(
            who, flight.request_bytes, row_keys, rows, page.version, names
        )
        share, keep = sharing(exchange.headers, flight.asked.repeatable)
        return Wanted(who.tenant.name, page, rows, keys, share, keep)

    def _submit(
        self, flight: RequestContext, way: ModelSelection, terms: Terms, rows: Rows
    ) -> Ticket:
        """Queues the rows for what is left of the caller's time."""
        ticket = way.model.batches.submit(rows, terms, demand_of(flight, way.promise))
        ticket.trace = flight.trace
        return ticket


@dataclass(frozen=True, slots=True)
class _Answered:
    """`page`: what the rows were parsed for."""

    page: ModelDescription
    rows: Rows
    answers: tuple[RowAnswer, ...]


async def _by_either(
    flight: RequestContext, way: ModelSelection, attempt: Callable[[], Awaitable[T]]
) -> T:
    """A cheaper model, before a refusal: once, on the same clock, and not once an answer flows."""
    while True:
        try:
            return await attempt()
        except errors.HeadraceError as refusal:
            if flight.exchange.replied:
                raise
            way.turn(refusal)
            flight.turned()


def _seat(demand: Demand, rows: int) -> Follower:
    now = monotonic()
    return Follower(rows, demand.priority, now + demand.deadline_s, now + demand.expires_s)


def _as_answered(
    page: ModelDescription, version: str | None, answers: tuple[RowAnswer, ...]
) -> ModelDescription:
    """The page of the version that ran the rows: a later one than they were parsed for, if it went
    live while they waited. Not all of them by one, or not by the one asked for: 503, ask again."""
    ran = {answer.version for answer in answers}
    if ran == {page.version}:
        return page
    if len(ran) > 1 or version is not None:
        raise errors.NotReady(
            "the model was replaced by another version meanwhile; ask again", retry_after_s=1.0
        )
    return replace(page, version=ran.pop())
