"""A request's way, on one page.

`answer` takes a request from its headers to its reply, in the one order that is cheap under load:
what can be refused by headers is refused before a body is read, what is heavy leaves the event
loop, what waits waits in the model's queue and nowhere else. Stages are functions of their own
modules; this one only orders them and says why. Waiting rows are ordered, batched and placed by the
model's dispatcher (`routers/`), which sees lengths and deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from deployments import errors
from deployments.description import ModelDescription, Scheduling
from deployments.http.codecs import Codec
from deployments.http.exchange import Asked, BodyLimits, Exchange
from deployments.http.protocols.inflate import MOST_INFLATION, inflate
from deployments.inflight import Flight, Gate
from deployments.queues.batch_calls import RowAnswer
from deployments.queues.served_model import ServedModel
from deployments.queues.tickets import Demand, Terms
from deployments.rows.columns import Rows
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
            await self._walk(flight, codec, name, version)
        except errors.HeadraceError as error:
            flight.failed(error)
            if not isinstance(error, errors.CallerLeft):
                await exchange.reply(error.status, codec.error(error), flight.headers(error))
        except asyncio.CancelledError:
            flight.failed(errors.CallerLeft("the client left"))
            raise
        except Exception:
            flight.failed(errors.HeadraceError("unexpected"))
            raise
        finally:
            watcher.landed(flight)

    async def _walk(
        self, flight: Flight, codec: Codec, name: str | None, version: str | None
    ) -> None:
        gate, exchange = self._gate, flight.exchange
        # Who, first: it costs a header, and all that follows is somebody's.
        who = flight.who = gate.identify(exchange)
        # Draining: nothing new may start, or the drain never ends.
        gate.check_open()
        # Which model, when the URL says it: 404 and 503 before the body is read.
        model = self._find(flight, who, name, version)
        # Cheap refusals: headers that make no sense, the tenant's rate of requests, declared size,
        # a queue that is full already.
        asked = exchange.asked()
        gate.rates.take_request(who.tenant)
        exchange.check_length(gate.limits)
        if model is not None:
            model.queue.check_room()
        # The body, bounded in size and time; inflated off the loop.
        body = await self._body(exchange, who)
        # Parse: small bodies at once, large ones in the pool, tenants in turn.
        page = model and model.description
        call = await gate.off_loop(who, len(body), codec.decode, body, exchange, page)
        if model is None:
            model = self._find(flight, who, call.model, None)
            assert model is not None
            model.queue.check_room()
        # From here on by one version's page and terms, even if another goes live meanwhile.
        page, terms = model.description, model.queue.terms
        flight.mark("parse")
        # How long: tokenise texts off the loop; rows get their lengths, too long ones are refused.
        tokens = await self._tokens(codec, call, model, who)
        rows = await gate.off_loop(who, len(body), codec.split, call, tokens, page)
        # The tenant's own limits, as soon as lengths are known: its length, its rate of tokens.
        _check_own_length(who, rows.lengths)
        gate.rates.take_tokens(who.tenant, sum(rows.lengths))
        flight.mark("tokenize")
        # Queue: bounded, by deadline; late binding happens behind this line.
        answers = await self._wait(flight, model, terms, rows, asked)
        flight.queued(answers)
        # Reply.
        encoded = codec.encode(call, rows, answers, _as_answered(page, version, answers))
        flight.response_bytes = len(encoded.body)
        await exchange.reply(200, encoded, flight.headers(None))
        flight.mark("reply")

    def _find(
        self, flight: Flight, who: Caller, name: str | None, version: str | None
    ) -> ServedModel | None:
        if name is None:
            return None
        if not who.tenant.may_use(name):
            raise errors.Forbidden("this tenant may not use this model", param="model")
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
            who, len(body) * MOST_INFLATION, inflate, body, limits.max_inflated_bytes
        )
        exchange.hold(len(inflated), limits.room)
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
        self,
        flight: Flight,
        model: ServedModel,
        terms: Terms,
        rows: Rows,
        asked: Asked,
    ) -> tuple[RowAnswer, ...]:
        assert flight.who is not None
        spent_s = perf_counter() - flight.exchange.arrived
        demand = _demand(flight.who, asked, model.description.scheduling, spent_s)
        ticket = flight.ticket = model.queue.submit(rows, terms, demand)
        ticket.trace = flight.trace
        # The client may leave while it waits; most answers are there before it pays to look.
        watch = _Watch(flight.exchange, partial(model.queue.cancel, ticket))
        try:
            return await ticket.future
        except asyncio.CancelledError:
            model.queue.cancel(ticket)
            raise
        finally:
            watch.end()


def _demand(who: Caller, asked: Asked, s: Scheduling, spent_s: float) -> Demand:
    """`spent_s` of the caller's time have passed since its headers arrived."""
    tenant, budget_s = who.tenant, asked.budget_s
    return Demand(
        tenant=tenant.name,
        priority=who.rank,
        deadline_s=(s.slo_s if budget_s is None else budget_s) - spent_s,
        expires_s=(s.timeout_s if budget_s is None else budget_s) - spent_s,
        weight=tenant.weight,
        tenant_rows=tenant.max_queue_rows,
        # Sessions of different tenants are different, whatever their callers name them.
        session=f"{tenant.name}/{asked.session}" if asked.session else "",
        repeatable=asked.repeatable,
    )


class _Watch:
    """Calls `left` if the client disconnects; looks only after a while."""

    def __init__(self, exchange: Exchange, left: Callable[[], None]) -> None:
        self._exchange = exchange
        self._left = left
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._look)

    def _look(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._until_gone())

    async def _until_gone(self) -> None:
        await self._exchange.until_disconnect()
        self._left()

    def end(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()


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


def _check_own_length(who: Caller, lengths: tuple[int, ...]) -> None:
    bound = who.tenant.max_length
    if bound is not None and max(lengths) > bound:
        raise errors.BadRequest(
            f"a row is {max(lengths)} long; this tenant's rows may be {bound} at most (max_length)"
        )
