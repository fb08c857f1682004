"""How does the gateway answer one request, from its headers to its reply? Start reading here.

`Pipeline.answer` takes the stages in the one order that stays cheap under load:

- What can be refused by headers alone is refused before a body is read.
- Heavy work leaves the event loop: parsing, tokenising, image decoding.
- A request waits in its model's queue and nowhere else.

The stages are functions of their own modules. This module only puts them in order and says why; the
numbers in the comments are the order. Rows that wait are admitted, ordered, batched, placed and
copied by the model's dispatcher (`routers/`), which sees tenants, lengths and deadlines but no
contents. A request that generates leaves this module after stage 7, for `generation`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from deployments.contract import errors
from deployments.contract.description import ModelDescription
from deployments.gateway.http import large_answers
from deployments.gateway.http.body import BodyBound, bound_of, widest
from deployments.gateway.http.codecs import Codec, GenerationCodec
from deployments.gateway.http.exchange import Exchange, run_until_disconnect
from deployments.gateway.http.large_answers import SMALL_ANSWER, AnswerSize, LargeAnswer
from deployments.gateway.http.protocols import open_inference
from deployments.gateway.http.protocols.openai_generation import GenerationCall
from deployments.gateway.http.protocols.tensors import Encoded, InferCall
from deployments.gateway.http.row_conversion import region_outputs
from deployments.gateway.models.served_model import ServedModel
from deployments.gateway.queues.dispatcher_driver import QueueRequest, VersionTerms
from deployments.gateway.queues.lost_replicas import fingerprints
from deployments.gateway.queues.pending_requests import PendingBatchRequest
from deployments.gateway.queues.suspected_requests import Work
from deployments.gateway.reuse.answer_reuse import ReuseQuery, sharing
from deployments.gateway.reuse.single_flight import Follower
from deployments.gateway.rollout.model_selection import ModelSelection
from deployments.gateway.rollout.rollouts import GatewayRollouts
from deployments.gateway.rollout.shadow_traffic import Answered
from deployments.gateway.rows import RowAnswer, Rows, row_keys
from deployments.gateway.services import (
    GatewayServices,
    RequestContext,
    RequestWatcher,
    check_tenant_bounds,
    queue_request,
)
from deployments.gateway.tenancy.tenants import Caller, Tenant

T = TypeVar("T")
Generate = Callable[[GatewayServices, RequestContext, ModelSelection, Any], Awaitable[None]]
_ROW_BYTES = 512  # a row takes up to 9 us to read, as long as so many bytes of numbers
_LEFT = errors.CallerLeft.status  # and above: nothing shows that the request is harmless


class Pipeline:
    """The stages of every request that asks a model for an answer."""

    def __init__(
        self, services: GatewayServices, rollouts: GatewayRollouts, generate: Generate
    ) -> None:
        self._services = services  # what all requests share: tenants, models, the pool, limits
        self._rollouts = rollouts  # which version gets a request of a model under rollout
        self._generate = generate  # answers a request that generates, from stage 8 on

    async def answer(
        self,
        exchange: Exchange,
        codec: Codec | GenerationCodec,
        name: str | None,
        version: str | None = None,
    ) -> None:
        """Answer one request; `name` None: the body names the model. However it ends, the caller
        gets one reply (unless it has left) and the watcher one record. Raises what is unexpected,
        for `GatewayApp` to reply to."""
        watcher = self._services.watcher
        context = RequestContext(exchange, codec.label, watcher.begin(exchange.headers))
        try:
            await self._stages(context, codec, name, version)
        except errors.HeadraceError as error:
            context.failed(error)
            if not isinstance(error, errors.CallerLeft) and not exchange.replied:
                said = context.headers(error)
                context.status = await exchange.refuse(error, codec.error, said)
        except asyncio.CancelledError:
            context.failed(errors.CallerLeft("the client disconnected"))
            raise
        except Exception:
            context.failed(errors.HeadraceError("unexpected"))
            raise
        finally:
            begun = context.begun
            try:
                if context.work is not None:
                    context.work.end(answered=context.status < _LEFT)
                watcher.finished(context)
                del context  # and with it the rows of the answer
                # 13. Until the client has taken a large answer, its place and its bytes count:
                # HAProxy counts it as long, and what is not taken is kept here.
                if exchange.is_large:
                    await exchange.await_drained(self._services.limits.room)
            finally:
                if begun:
                    self._services.end(exchange.quota_key)

    async def _stages(
        self,
        context: RequestContext,
        codec: Codec | GenerationCodec,
        name: str | None,
        version: str | None,
    ) -> None:
        services, exchange = self._services, context.exchange
        # 1. The caller. First, because it costs one header and every later stage is charged to a
        # tenant.
        caller = context.caller = services.identify(exchange)
        # 2. Whether anything may start. While the server drains, nothing may, or the drain would
        # never end. Requests under way are bounded, and each tenant has its share of the bound:
        # HAProxy knows no tenants, and lets more through than are taken here.
        services.begin(exchange.quota_key)
        context.begun = True
        # 3. The model, if the URL names it. Unknown (or not for this caller): 404. Not ready: 503,
        # unless it names a cheaper model as its fallback. Both are said before the body is read.
        selection = None if name is None else self._select(context, caller, name, version)
        # 4. Cheap refusals, by headers alone: malformed headers, the tenant's rate of requests, the
        # declared size, a queue that is full or has just rejected a request like this one.
        context.options = exchange.options()
        services.rates.take_request(caller.tenant)
        declared = exchange.check_length(services.limits)
        if selection is not None:
            _check_room(context, selection)
        # 5. The body. Its size and the time it takes to arrive are bounded, the size also by what
        # the model could use. It is inflated off the event loop, after 5a.
        bound = self._bound, caller.tenant, selection, codec
        body = await services.read_body(exchange, declared, *bound)
        if not codec.takes_views:
            body = bytes(body)  # which most are
        # 5a. What may have ended another gateway is worked on alone, or refused. Before anything
        # reads the body's contents.
        work = context.work = services.suspected.begin(exchange.path, body)
        if work is not None and work.is_suspect:
            await work.take_turn(caller.tenant.name)
        if exchange.encoding != b"identity":
            body = await services.inflated(exchange, caller, body, *bound)
        # 6. Parse. Small bodies at once, large ones in the thread pool, where tenants take turns.
        # Where the body names the model, the model is looked up now, as in 3 and 4.
        context.request_bytes = len(body)
        call = await self._decoded(context, selection, codec, body)
        if selection is None:
            adapter = call.adapter if isinstance(call, GenerationCall) else ""
            version = call.version if isinstance(call, InferCall) else None
            name = call.model or self._only(caller, codec)
            selection = self._select(context, caller, name, version, adapter)
            _check_room(context, selection)
        if isinstance(call, InferCall) and call.parameters:
            context.options = open_inference.with_parameters(context.options, call.parameters)
            context.demand = queue_request(context, selection.scheduling)
        context.mark("parse")
        # 6a. What the body names instead of carrying it: read from shared memory, or fetched. Once,
        # so that retries, hedges, the cache and the canary all see the same bytes.
        if call.external:
            if work is not None:  # what happens while it waits for others is not its doing
                work.pause()
            call = await services.external.fill(context, selection.scheduling, call)
            if work is not None:
                await _resumed(context, work)
        # 7. Answer: by the requested model or its fallback; of a model under rollout, by the canary
        # or the live version. A request that generates goes on in `generation`, which sends the
        # answer piece by piece. Rows (8 to 11) are answered together, then encoded by the
        # description of the version that ran them.
        if isinstance(call, GenerationCall) or isinstance(codec, GenerationCodec):
            generating = partial(self._generate, services, context, selection, call)
            await _with_fallback(services.watcher, context, selection, generating)
            return
        done, encoded, large = await self._answered(context, selection, codec, call, version)
        context.response_bytes = len(encoded.body)
        if large is not None and encoded.more:
            # 11c. The rest of a large answer, a piece whenever the client has taken the one before.
            context.response_bytes = await large_answers.send(
                exchange, encoded, context.headers(None), large, services.pool, caller.tenant.name
            )
        else:
            await exchange.reply(200, encoded, context.headers(None), services.limits.room)
        context.mark("reply")
        # 12. A copy for the canary, if the model's rollout asks for copies. Last, so that no caller
        # waits for it.
        if _may_be_copied(context, selection):
            copied = Answered(done.description, done.rows, done.answers, context.request_bytes)
            self._rollouts.answered(context.model, copied)

    async def _decoded(
        self,
        context: RequestContext,
        selection: ModelSelection | None,
        codec: Codec | GenerationCodec,
        body: Any,
    ) -> Any:
        """The parsed body. A body that the canary's description does not allow is parsed again for
        the live version."""
        services, caller, exchange = self._services, context.caller, context.exchange
        assert caller is not None
        while True:
            known = None if selection is None else selection.model.description
            try:
                if len(body) <= services.on_loop_bytes:
                    return codec.decode(body, exchange, known)
                return await services.pool.run(
                    caller.tenant.name, codec.decode, body, exchange, known
                )
            except errors.HeadraceError as refusal:
                if selection is None or not selection.on_canary:
                    raise
                _fall_back(services.watcher, context, selection, refusal)

    async def _answered(
        self,
        context: RequestContext,
        selection: ModelSelection,
        codec: Codec,
        call: Any,
        version: str | None,
    ) -> tuple[_AnsweredRows, Encoded, LargeAnswer | None]:
        """The answers, and their encoding for the client; of a large one its beginning, and the
        rest. Raises the refusal that the caller is to be told, once no other version or model may
        answer."""
        while True:
            try:
                done = await self._infer(context, selection, codec, call)
            except errors.HeadraceError as refusal:
                # As `_with_fallback`, without its coroutine: no part of the answer is sent here.
                _fall_back(self._services.watcher, context, selection, refusal)
                continue
            if context.work is not None:
                await _resumed(context, context.work)
            context.answered(done.answers, selection.fallback)
            try:
                description = _description_of_ran(done.description, version, done.answers)
                if done.size is SMALL_ANSWER:  # as of most
                    encoded, large = codec.encode(call, done.rows, done.answers, description), None
                else:
                    encoded, large = await self._encoded(context, codec, call, done, description)
            except errors.HeadraceError as refusal:
                if not selection.on_canary:
                    raise
                _fall_back(self._services.watcher, context, selection, refusal)
                continue
            if selection.assignment is not None:
                assert context.caller is not None
                ran = context.reused is None or context.reused.ran_alone
                selection.answered(context.caller.rank, done.rows.lengths, ran=ran)
                selection.record(done.rows)
            return done, encoded, large

    async def _encoded(
        self,
        context: RequestContext,
        codec: Codec,
        call: Any,
        done: _AnsweredRows,
        d: ModelDescription,
    ) -> tuple[Encoded, LargeAnswer | None]:
        services, caller, size = self._services, context.caller, done.size
        assert caller is not None
        if not size.known:
            size = codec.answer_size(call, done.rows, d, done.answers)
            services.hold_answer(context.exchange, size, done.rows)
        if call.external and isinstance(call, InferCall):
            # 11a. What the client wants in its shared memory, once nothing refuses the answer any
            # more. The answer says only where.
            found = region_outputs(call, done.rows, done.answers, d)
            await services.external.write(context, found)
        if size.is_small:
            return codec.encode(call, done.rows, done.answers, d), None
        # 11b. A large answer is encoded off the event loop, a piece at a time.
        large = codec.pieces(call, done.rows, done.answers, d)
        return await large_answers.beginning(large, services.pool, caller.tenant.name), large

    async def _infer(
        self, context: RequestContext, selection: ModelSelection, codec: Codec, call: Any
    ) -> _AnsweredRows:
        """The rows and their answers, by the model that is selected now."""
        services, caller, model = self._services, context.caller, selection.model
        assert caller is not None
        # From here on this version's description and terms, even if another version goes live
        # meanwhile.
        description, batches = model.description, model.batches
        terms = batches.terms
        context.version = description.version
        texts, images = codec.texts(call, description), codec.images(call, description)
        selection.check_same_meaning(texts=texts is not None, named=codec.names_tensors)
        # 8. Lengths: tokenise texts, decode and resize images, off the event loop. Rows that are
        # too long for the model are refused.
        try:
            tokens = None if texts is None else await self._tokens(texts, model, caller)
        except errors.BadText as wrong:
            raise wrong.named(codec.text_name(call, wrong.index)) from None
        if images is not None and description.image is not None:
            tokens = await services.prepare_images(context, description.image, images)
        if _work_bytes(context, codec.row_count(call)) <= services.on_loop_bytes:
            rows = codec.split(call, tokens, description, model.tokenizer)
        else:
            split = partial(codec.split, call, tokens, description, model.tokenizer)
            rows = await services.pool.run(caller.tenant.name, split)
        # 9. The tenant's own limits, as soon as lengths are known: its bounds, and its rate of
        # tokens, which a request that comes to a fallback has paid already.
        check_tenant_bounds(caller, rows.lengths)
        if context.counted is None:
            tokens_sent = sum(rows.lengths)
            services.rates.take_tokens(caller.tenant, tokens_sent)
            context.counted = tokens_sent
        # 9a. What the answer will be: refused if it is too large, its memory held if it is large.
        # Now, because a small request may ask for an answer that no gateway could hold, and
        # nothing of it has been computed yet.
        size = codec.answer_size(call, rows, description)
        if size is not SMALL_ANSWER:
            services.hold_answer(context.exchange, size, rows)
        context.mark("tokenize")
        # 10. Recording, where settings ask for it. Before the cache, which would hide repeated
        # inputs from it.
        if model.recorder is not None and caller.tenant.record:
            model.recorder.offer(caller.tenant.name, rows)
        # 10a. Rows that have ended replicas: refused or marked as suspect. Looked for only while
        # any are known, because it costs a hash of every row.
        suspect = False
        if batches.crashes or selection.lost_at_canary:
            suspect = await self._is_suspect(context, selection, rows)
        selection.begins()
        reuse = model.reuse
        if reuse is None:
            # 11. Queue: bounded, and given the request's deadline. Only the dispatcher, behind
            # this line, chooses a replica, and only when one is free (late binding).
            pending = self._submit(context, selection, terms, suspect, rows)
            context.queued()
            answers = await run_until_disconnect(
                context.exchange, pending.future, batches.cancel, pending
            )
            return _AnsweredRows(description, rows, answers, size)
        # 10b. Reuse, before the queue: cached answers, row by row, then the run of an identical
        # request. Only the remaining rows are queued, once for all callers that wait for them.
        query = await self._reuse_query(context, description, rows)
        follower = _follower(selection.asks(context.demand), rows.count)
        submit = partial(self._submit, context, selection, terms, suspect)
        context.queued()
        answering = reuse.answers(query, follower, submit)
        context.reused = await run_until_disconnect(context.exchange, answering, follower.leave)
        return _AnsweredRows(description, rows, context.reused.answers, size)

    def _only(self, caller: Caller, codec: Codec | GenerationCodec) -> str:
        """The model of a request that names none. Raises BadRequest unless one alone is declared,
        and NotReady while that is not known."""
        kind = codec.kind_without_a_name
        if not kind:
            raise errors.BadRequest("the body must name a model", param="model")
        names, more = self._services.models.of_kind(kind, caller.tenant.may_use)
        if more and len(names) < 2:
            raise errors.NotReady(
                f"which models are for {kind} is not known yet; name one, or ask again",
                retry_after_s=errors.NOT_READY_S,
            )
        if len(names) != 1:
            such = f"those for {kind} are {', '.join(names) or 'none'}"
            raise errors.BadRequest(f"the body must name a model; {such}", param="model")
        return names[0]

    def _select(
        self,
        context: RequestContext,
        caller: Caller,
        name: str,
        version: str | None,
        adapter: str = "",
    ) -> ModelSelection:
        """The model, version or fallback that has the request first. Raises NotFound, NotReady."""
        services = self._services
        asked, name = name, services.models.name_of(name)
        if not caller.tenant.may_use(name, adapter):
            raise services.models.missing(f"{asked}:{adapter}" if adapter else asked)
        under_rollout = name in services.models.routes
        assignment = self._rollouts.assignment(name, version) if under_rollout else None
        selection = ModelSelection(services.models, caller.tenant, name, version, assignment)
        context.model, context.scheduling = name, selection.scheduling
        services.watcher.arrived(context)
        if assignment is not None:
            goes_to = "canary" if selection.on_canary else "live version"
            services.watcher.decided(context, "version", goes_to, "the model is under rollout")
        return selection

    async def _tokens(self, texts: list[str], model: ServedModel, caller: Caller) -> list[Any]:
        if model.tokenizer is None:
            raise errors.BadRequest(
                f"model {model.description.name} has no tokeniser; send token ids instead of text"
            )
        return await self._services.tokenize(caller, model.tokenizer, texts)

    def _bound(
        self, tenant: Tenant, selection: ModelSelection | None, codec: Codec | GenerationCodec
    ) -> BodyBound:
        """How large a body may be: what the selected version, or the live one, could use."""
        if selection is None:  # any model of the tenant's: a refusal names the model
            models = (model.description for model in self._services.models.queued.values())
            return widest(
                (model for model in models if tenant.may_see(model.name)),
                numbers=codec.names_tensors,
            )
        if not selection.on_canary:
            return bound_of(selection.model.description, numbers=codec.names_tensors)
        bounds = [bound_of(d, numbers=codec.names_tensors) for d in selection.candidate_versions]
        return max(bounds, key=lambda bound: bound.size_bytes)

    async def _reuse_query(
        self, context: RequestContext, description: ModelDescription, rows: Rows
    ) -> ReuseQuery:
        caller, outputs = context.caller, [spec.name for spec in description.outputs]
        assert caller is not None
        work = _work_bytes(context, rows.count)
        keys = await self._services.off_loop(
            caller, work, row_keys, rows, description.version, outputs
        )
        share, keep = sharing(context.exchange.headers, context.options.repeatable)
        return ReuseQuery(caller.tenant.name, description, rows, keys, share, keep)

    async def _is_suspect(
        self, context: RequestContext, selection: ModelSelection, rows: Rows
    ) -> bool:
        """Whether a replica, also a canary's, was lost with one of these rows. Raises
        RowQuarantined for rows that are refused for that, OverOwnLimit for a tenant with too
        many of them."""
        model, caller = selection.model, context.caller
        assert caller is not None
        crashes, version = model.batches.crashes, model.description.version
        work = _work_bytes(context, rows.count)
        keys = await self._services.off_loop(caller, work, fingerprints, rows, version)
        if selection.lost_at_canary:
            crashes.lost_elsewhere(keys, caller.tenant.name, monotonic())
        return crashes.check(keys, caller.tenant.name, monotonic())

    def _submit(
        self,
        context: RequestContext,
        selection: ModelSelection,
        terms: VersionTerms,
        suspect: bool,
        rows: Rows,
    ) -> PendingBatchRequest:
        """Queue the rows, for what is left of the caller's time."""
        demand = selection.asks(context.demand)
        if suspect:
            demand = structs.replace(demand, suspect=True)
        pending = selection.model.batches.submit(rows, terms, demand)
        pending.trace = context.trace
        selection.submitted(pending)
        return pending


class _AnsweredRows(msgspec.Struct):
    """A request's rows and their answers, in the same order."""

    description: ModelDescription  # of the version that the rows were parsed for
    rows: Rows
    answers: tuple[RowAnswer, ...]
    size: AnswerSize  # as it was known before they were there


def _fall_back(
    watcher: RequestWatcher,
    context: RequestContext,
    selection: ModelSelection,
    refusal: errors.HeadraceError,
) -> None:
    """The request goes on to the live version or the fallback. Raises what the caller is told."""
    selection.fall_back(refusal)
    context.fell_back()
    chosen = selection.model.description
    watcher.decided(
        context, "fallback", f"goes on to {chosen.name} {chosen.version}", refusal.reason
    )


async def _with_fallback(
    watcher: RequestWatcher,
    context: RequestContext,
    selection: ModelSelection,
    attempt: Callable[[], Awaitable[T]],
) -> T:
    """`attempt`, and again after a refusal: by the live version if the canary refused, then by the
    cheaper model. Each has one attempt, within the request's one deadline, and none follows once a
    part of an answer was sent."""
    while True:
        try:
            return await attempt()
        except errors.HeadraceError as refusal:
            if context.exchange.replied:
                selection.failed(refusal)
                raise
            _fall_back(watcher, context, selection, refusal)


async def _resumed(context: RequestContext, work: Work) -> None:
    """Its answer is encoded now."""
    if work.is_suspect:
        assert context.caller is not None
        await work.take_turn(context.caller.tenant.name)
    else:
        work.go_on()


def _check_room(context: RequestContext, selection: ModelSelection) -> None:
    """Raises what `ModelSelection.check_room` raises."""
    context.demand = queue_request(context, selection.scheduling)
    selection.check_room(context.demand)


def _work_bytes(context: RequestContext, rows: int) -> int:
    """A request's size, as far as work on each of its rows goes: many rows may be few bytes."""
    return max(context.request_bytes, rows * _ROW_BYTES)


def _may_be_copied(context: RequestContext, selection: ModelSelection) -> bool:
    """Whether the canary may get a copy: the request went to the live version of a model under
    rollout at once, was answered by it, and may run twice."""
    assignment = selection.assignment
    if assignment is None or not assignment.began_live:
        return False
    return not selection.fallback and context.options.repeatable


def _follower(demand: QueueRequest, rows: int) -> Follower:
    due, ends = demand.at + demand.slo_budget_s, demand.at + demand.budget_s
    return Follower(rows, demand.priority, due, ends)


def _description_of_ran(
    description: ModelDescription, version: str | None, answers: tuple[RowAnswer, ...]
) -> ModelDescription:
    """The description of the version that ran the rows. It is later than the one that they were
    parsed for, if another version went live while they waited. Raises NotReady if several versions
    ran them, or another one than the caller asked for."""
    ran = {answer.version for answer in answers}
    if ran == {description.version}:
        return description
    if len(ran) > 1 or version is not None:
        raise errors.NotReady(
            "the model was replaced by another version meanwhile; send the request again",
            retry_after_s=errors.SOON_S,
        )
    return replace(description, version=ran.pop())
