"""A request's way, on one page.

`answer` takes a request from its headers to its reply, in the one order that is cheap under load:
what can be refused by headers is refused before a body is read, what is heavy leaves the event
loop, what waits waits in the model's queue and nowhere else. Stages are functions of their own
modules; this one only orders them and says why. Waiting rows are let in, ordered, batched, placed
and raced by the model's dispatcher (`routers/`), which sees tenants, lengths and deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, perf_counter
from typing import Any, TypeVar

from deployments import errors
from deployments.description import ModelDescription, Scheduling
from deployments.http.codecs import Codec
from deployments.http.exchange import BodyLimits, Exchange
from deployments.http.protocols.inflate import MOST_INFLATION, inflate
from deployments.inflight import Flight, Gate
from deployments.ladder.fallback import Way
from deployments.ladder.row_keys import row_keys
from deployments.ladder.rungs import Wanted, sharing
from deployments.ladder.single_flight import Seat
from deployments.queues.batch_calls import RowAnswer
from deployments.queues.served_model import ServedModel
from deployments.queues.tickets import Demand, Terms, Ticket
from deployments.rows.columns import Rows
from deployments.tenants import Caller

_WATCH_AFTER_S = 0.05
T = TypeVar("T")


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
        # Which model, when the URL says it: 404 and 503 before the body is read. One that is not
        # ready may name a cheaper one, which then takes its place.
        way = None if name is None else self._way(flight, who, name, version)
        # Cheap refusals: headers that make no sense, the tenant's rate of requests, declared size,
        # a queue that is full already or has just refused the like of it.
        flight.asked = exchange.asked()
        gate.rates.take_request(who.tenant)
        exchange.check_length(gate.limits)
        if way is not None:
            way.check_room(_demand(flight, way.promise))
        # The body, bounded in size and time; inflated off the loop.
        body = await self._body(exchange, who)
        # Parse: small bodies at once, large ones in the pool, tenants in turn.
        page = way and way.model.description
        flight.request_bytes = len(body)
        call = await gate.off_loop(who, len(body), codec.decode, body, exchange, page)
        if way is None:
            way = self._way(flight, who, call.model, None)
            way.check_room(_demand(flight, way.promise))
        flight.mark("parse")
        while True:
            try:
                done = await self._answered(flight, way, codec, call)
                break
            except errors.HeadraceError as refusal:
                # A cheaper model, before a refusal: once, on the same clock.
                way.turn(refusal)
                flight.turned()
        flight.done(done.answers, way.fallback)
        # Reply, as the model that ran.
        page = _as_answered(done.page, version, done.answers)
        encoded = codec.encode(call, done.rows, done.answers, page)
        flight.response_bytes = len(encoded.body)
        await exchange.reply(200, encoded, flight.headers(None))
        flight.mark("reply")

    async def _answered(self, flight: Flight, way: Way, codec: Codec, call: Any) -> _Answered:
        gate, who, model = self._gate, flight.who, way.model
        assert who is not None
        # From here on by one version's page and terms, even if another goes live meanwhile.
        page, terms = model.description, model.queue.terms
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
        _check_own_bounds(who, rows.lengths)
        if not flight.counted:
            gate.rates.take_tokens(who.tenant, sum(rows.lengths))
            flight.counted = True
        flight.mark("tokenize")
        submit, rungs = partial(self._submit, flight, way, terms), model.rungs
        if rungs is None:
            # Queue: bounded, by deadline; late binding happens behind this line.
            ticket = submit(rows)
            left = partial(model.queue.cancel, ticket)
            return _Answered(page, rows, await _unless_left(flight, ticket.future, left))
        # What need not run comes first: rows answered before, then an identical request's run. The
        # queue gets what is left, and whoever was there first waits in it for all.
        wanted = await self._wanted(flight, page, rows)
        seat = _seat(_demand(flight, way.promise), rows.count)
        found = await _unless_left(flight, rungs.answers(wanted, seat, submit), seat.leave)
        flight.found(found)
        return _Answered(page, rows, found.answers)

    def _way(self, flight: Flight, who: Caller, name: str, version: str | None) -> Way:
        if not who.tenant.may_use(name):
            raise errors.Forbidden("this tenant may not use this model", param="model")
        way = Way(self._gate.models, who.tenant, name, version)
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

    async def _wanted(self, flight: Flight, page: ModelDescription, rows: Rows) -> Wanted:
        who, exchange = flight.who, flight.exchange
        assert who is not None
        names = [spec.name for spec in page.outputs]
        keys = await self._gate.off_loop(
            who, flight.request_bytes, row_keys, rows, page.version, names
        )
        share, keep = sharing(exchange.headers, flight.asked.repeatable)
        return Wanted(who.tenant.name, page, rows, keys, share, keep)

    def _submit(self, flight: Flight, way: Way, terms: Terms, rows: Rows) -> Ticket:
        """Queues the rows for what is left of the caller's time."""
        ticket = way.model.queue.submit(rows, terms, _demand(flight, way.promise))
        ticket.trace = flight.trace
        return ticket


@dataclass(frozen=True, slots=True)
class _Answered:
    """`page`: what the rows were parsed for."""

    page: ModelDescription
    rows: Rows
    answers: tuple[RowAnswer, ...]


def _demand(flight: Flight, promise: Scheduling) -> Demand:
    """What a request asks of a queue, some of its time having passed since its headers arrived."""
    assert flight.who is not None
    tenant, asked = flight.who.tenant, flight.asked
    spent_s, budget_s = perf_counter() - flight.exchange.arrived, asked.budget_s
    return Demand(
        tenant=tenant.name,
        priority=flight.who.rank,
        deadline_s=(promise.slo_s if budget_s is None else budget_s) - spent_s,
        expires_s=(promise.timeout_s if budget_s is None else budget_s) - spent_s,
        weight=tenant.weight,
        tenant_rows=tenant.max_queue_rows,
        # Sessions of different tenants are different, whatever their callers name them.
        session=f"{tenant.name}/{asked.session}" if asked.session else "",
        repeatable=asked.repeatable,
    )


def _seat(demand: Demand, rows: int) -> Seat:
    now = monotonic()
    return Seat(rows, demand.priority, now + demand.deadline_s, now + demand.expires_s)


async def _unless_left(flight: Flight, answers: Awaitable[T], left: Callable[[], None]) -> T:
    """What is awaited; `left` is called if the client leaves before. Most answers are there before
    it pays to look."""
    flight.waits()
    watch = _Watch(flight.exchange, left)
    try:
        return await answers
    except asyncio.CancelledError:
        left()
        raise
    finally:
        watch.end()


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


def _check_own_bounds(who: Caller, lengths: tuple[int, ...]) -> None:
    bound, most = who.tenant.max_length, who.tenant.max_queue_rows
    if most and len(lengths) > most:
        raise errors.BadRequest(
            f"the request has {len(lengths)} rows; this tenant's may be {most} (max_queue_rows)"
        )
    if bound is not None and max(lengths) > bound:
        raise errors.BadRequest(
            f"a row is {max(lengths)} long; this tenant's rows may be {bound} at most (max_length)"
        )
