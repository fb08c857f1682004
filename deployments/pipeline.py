"""A request's way, on one page.

`answer` takes a request from its headers to its reply, in the one order that is cheap under load:
what can be refused by headers is refused before a body is read, what is heavy leaves the event
loop, what waits waits in the model's queue and nowhere else. Stages are functions of their own
modules; this one only orders them and says why. Waiting rows are ordered, batched, hedged and sent
by the model's dispatcher (`routers/`), which sees lengths, tenants and deadlines.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

from deployments import errors
from deployments.codecs import Codec
from deployments.exchange import BodyLimits, Exchange
from deployments.inflight import Flight, Gate
from deployments.model_queue import Ticket
from deployments.protocols.inflate import inflate
from deployments.served_model import ServedModel
from deployments.tenants import Caller

_WATCH_AFTER_S = 0.05


class Pipeline:
    """`gate` holds what all requests share: tenants, models, the preprocessing pool, limits."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def answer(
        self, exchange: Exchange, codec: Codec, name: str | None, version: str | None = None
    ) -> None:
        """`name` None: the body names the model. Every ending is one reply and one record."""
        watcher = self._gate.watcher
        flight = Flight(exchange, codec.label, watcher.begin(exchange.headers))
        try:
            await self._walk(flight, exchange, codec, name, version)
        except errors.HeadraceError as error:
            flight.failed(error)
            if not isinstance(error, errors.CallerLeft):
                await exchange.reply(error.status, codec.error(error), flight.headers(error))
        except asyncio.CancelledError:
            flight.failed(errors.CallerLeft("the client left"))
            raise
        finally:
            watcher.landed(flight)

    async def _walk(
        self,
        flight: Flight,
        exchange: Exchange,
        codec: Codec,
        name: str | None,
        version: str | None,
    ) -> None:
        gate = self._gate
        # Who, first: it costs a header, and all that follows is somebody's.
        who = flight.who = gate.identify(exchange)
        # Draining: nothing new may start, or the drain never ends.
        gate.check_open()
        # Which model, when the URL says it: 404 and 503 before the body is read.
        model = self._find(flight, who, name, version)
        # Cheap refusals: declared size, and a queue that is full already.
        exchange.check_length(gate.limits)
        if model is not None:
            gate.check_room(model)
        # The body, bounded in size and time; inflated off the loop.
        body = await self._body(exchange, who)
        # Parse: small bodies at once, large ones in the pool, tenants in turn.
        call = await gate.off_loop(
            who, len(body), codec.decode, body, exchange, model and model.description
        )
        if model is None:
            model = self._find(flight, who, call.model, None)
            assert model is not None
            gate.check_room(model)
        flight.mark("parse")
        # How long: tokenise texts off the loop; rows get their lengths, too long ones are refused.
        tokens = await self._tokens(codec, call, model, who)
        rows = codec.split(call, tokens, model.description)
        _check_own_length(who, rows.lengths)
        flight.mark("tokenize")
        # Queue: bounded, by deadline; late binding happens behind this line.
        answers = await self._wait(flight, exchange, model, rows, who)
        flight.queued(answers)
        # Reply.
        encoded = codec.encode(call, rows, answers, model.description)
        flight.response_bytes = len(encoded.body)
        await exchange.reply(200, encoded, flight.headers(None))
        flight.mark("reply")

    def _find(
        self, flight: Flight, who: Caller, name: str | None, version: str | None
    ) -> ServedModel | None:
        if name is None:
            return None
        if not who.tenant.may_use(name):
            raise errors.Forbidden(f"this tenant may not use model {name}")
        model = self._gate.models.find(name, version)
        flight.model = name
        self._gate.watcher.arrived(flight)
        return model

    async def _body(self, exchange: Exchange, who: Caller) -> bytes:
        limits: BodyLimits = self._gate.limits
        body = await exchange.body(limits)
        encoding = exchange.headers.get(b"content-encoding", b"identity").lower()
        if encoding == b"identity":
            return body
        if encoding != b"gzip":
            raise errors.UnsupportedMedia("Content-Encoding must be gzip or identity")
        inflated: bytes = await self._gate.off_loop(
            who, len(body), inflate, body, limits.max_inflated_bytes
        )
        return inflated

    async def _tokens(
        self, codec: Codec, call: Any, model: ServedModel, who: Caller
    ) -> list[Any] | None:
        texts = codec.texts(call)
        if texts is None:
            return None
        if model.tokenizer is None:
            raise errors.BadRequest(
                f"model {model.description.name} has no tokeniser; send token ids instead of text"
            )
        return await self._gate.tokenize(who, model.tokenizer, texts)

    async def _wait(
        self, flight: Flight, exchange: Exchange, model: ServedModel, rows: Any, who: Caller
    ) -> Any:
        s = model.description.scheduling
        budget_s = exchange.budget_s()
        deadline_s = s.slo_s if budget_s is None else budget_s
        left_s = perf_counter() - exchange.arrived
        expires_s = s.timeout_s if budget_s is None else budget_s
        ticket = flight.ticket = model.queue.submit(
            rows,
            tenant=who.tenant.name,
            priority=who.rank,
            deadline_s=deadline_s - left_s,
            expires_s=expires_s - left_s,
            trace=flight.trace,
        )
        # The client may leave while it waits; most answers are there before it pays to look.
        loop = asyncio.get_running_loop()
        watch = loop.call_later(_WATCH_AFTER_S, self._watch, exchange, model, ticket)
        try:
            return await ticket.future
        except asyncio.CancelledError:
            model.queue.cancel(ticket)
            raise
        finally:
            watch.cancel()
            if ticket.watcher is not None:
                ticket.watcher.cancel()

    def _watch(self, exchange: Exchange, model: ServedModel, ticket: Ticket) -> None:
        async def until_gone() -> None:
            await exchange.until_disconnect()
            model.queue.cancel(ticket)
            if not ticket.future.done():
                ticket.future.set_exception(errors.CallerLeft("the client left"))

        ticket.watcher = asyncio.get_running_loop().create_task(until_gone())


def _check_own_length(who: Caller, lengths: tuple[int, ...]) -> None:
    bound = who.tenant.max_length
    if bound is not None and max(lengths) > bound:
        raise errors.BadRequest(
            f"a row is {max(lengths)} long; this tenant's rows may be {bound} at most (max_length)"
        )
