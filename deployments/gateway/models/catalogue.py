"""Which models does this gateway serve, and what is a lookup of any other name answered?

`Catalogue` follows the registry and keeps one `ServedModel` for each declared model.

- A lookup answers 404 for a model that is not declared, and 503 for one that is declared and not
  ready, or while the gateway does not know yet which models are declared.
- A model whose replicas change keeps its queue. A model that is no longer declared is closed: what
  waits is refused, what runs is still answered. A model that may sleep is ready without replicas:
  its queue takes requests, which wake it.
- A canary is served like a model, but nobody can look it up, list it or wait for it; `canary`
  alone finds it, by the name in a route. When the last of its replicas goes, what waits for it is
  refused, for the live version to answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Protocol

from deployments.contract import errors
from deployments.contract.app_names import POOL_DIRECTORY, directory_key, model_app
from deployments.contract.codec import OtherVersion
from deployments.contract.description import GatewayIdentity, ModelDescription, is_version
from deployments.contract.registry import ANSWER_S, VIEW, View
from deployments.contract.rollout.terms import RolloutRoute, is_canary, model_of
from deployments.contract.scaling.messages import ModelOutlook
from deployments.gateway.decisions import DecisionLog
from deployments.gateway.models.served_model import ServedModel
from deployments.gateway.queues.connections import ReplicaChannel, ServeChannel, follow_pool
from deployments.gateway.queues.pending_requests import BatchRecord
from deployments.gateway.queues.pool_replicas import PoolMembers
from deployments.preprocess import pairs
from deployments.preprocess.tokenizer import TextTokenizer
from deployments.process.replica_directory import JoinedDirectories, directory_for

HOLD_S = 30.0
_NOT_MISSED_YET = inf  # the model may have no replica, but no request has found that yet


class Absences:
    """The absences of a gateway's models.

    May a request wait for a model that has no reachable replica at the moment?

    Yes, for the first `HOLD_S` seconds of the model's absence: a replica may be back before the
    request's time is up. An absence begins with the first request that finds no replica, and ends
    when a replica can be reached. A model that nobody announces any more (between two anchors) is
    treated alike. A request for a model of which nothing was ever heard does not wait. `Catalogue`
    asks.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}  # by model: when its absence began, `time.monotonic`

    def unannounced(self, name: str) -> None:
        """Nobody announces the model any more; its absence begins with its next request."""
        self._since[name] = _NOT_MISSED_YET

    def reached(self, name: str, *, announced: bool) -> None:
        """The model has a replica again: its absence is over."""
        if name in self._since:
            if announced:
                del self._since[name]
            else:
                self._since[name] = _NOT_MISSED_YET

    def is_short(self, name: str, *, announced: bool) -> bool:
        """Whether a request that has found no replica may wait. Begins the model's absence with
        this request, if it has not begun."""
        now = time.monotonic()
        since = self._since.get(name, _NOT_MISSED_YET if announced else 0.0)
        if since == _NOT_MISSED_YET:
            since = self._since[name] = now
        return now - since < HOLD_S

    def keep(self, names: Collection[str]) -> None:
        """Forget the absences of all other models."""
        self._since = {name: since for name, since in self._since.items() if name in names}


_WATCH_S = 5.0  # how long the registry may hold a question until there is something new
_BLOB_S = 30.0  # most time that a tokeniser takes to arrive: some megabytes
_LONGEST_RETRY_S = 60.0
_PAUSE_S = 0.5  # after which a failed step is tried again
_UNKNOWN = ModelOutlook()
_SHOWN_CHARACTERS = 100  # of a caller's own words in an error
logger = logging.getLogger("headrace.catalogue")


@dataclass(frozen=True, slots=True)
class _Adopting:
    """An announced version, until it is served."""

    description: ModelDescription
    task: asyncio.Task[None]


class SeededChannel(ReplicaChannel, Protocol):
    async def seed(self, groups: Sequence[str]) -> None:
        """Follow the replicas of these groups from now on ("": a model without groups)."""


class Connect(Protocol):
    """Makes the channel to a model's replicas. `sends_heartbeats`: they generate, see
    `ReplicaLink`."""

    def __call__(self, app: str, gateway: str, *, sends_heartbeats: bool) -> SeededChannel: ...


@dataclass(frozen=True, slots=True)
class _ReplicaAccess:
    """The channel to a model's replicas, of all its groups, and the directories that list them."""

    channel: SeededChannel
    directories: JoinedDirectories

    async def reach(self, description: ModelDescription) -> None:
        """Follow the replicas of all the model's groups, new ones included. Raises what Serve
        raises."""
        groups = list(description.group_digests())
        await self.channel.seed(groups)
        for group in groups:
            self.directories.add(directory_for(directory_key(description.name, group)))


class Catalogue:
    """One gateway's models. For the event loop's thread alone."""

    def __init__(
        self,
        registry: Any,
        identity: GatewayIdentity,  # this gateway, as its queues know it
        cache_bytes: int,  # bound of each tokeniser's cache of frequent texts
        on_batch: Callable[[str, BatchRecord], None],  # called with every answered batch
        connect: Connect = ServeChannel,
        follow_pool: Callable[[], None] = follow_pool,
    ) -> None:
        self._registry = registry
        self._identity = identity
        self._adapters_by_hand: Mapping[str, Mapping[str, str | None]] = {}
        self._cache_bytes = cache_bytes
        self._on_batch = on_batch
        self._connect = connect
        self._pool = PoolMembers(directory_for(POOL_DIRECTORY), follow_pool)
        # Called when the set of models has changed, before the loop's next turn.
        self.on_change: Callable[[], None] = lambda: None
        self.on_drain: Callable[[], None] = lambda: None  # called when all gateways are to drain
        self.on_crossing: Callable[[], None] = lambda: None  # see `DispatcherDriver`
        self.decisions: DecisionLog | None = None  # of all queues, where settings ask for it
        self.outlooks: Mapping[str, ModelOutlook] = {}  # as the autoscaler last said, by model
        self._outlooks_at = 0.0  # when that was, `time.monotonic`
        self.routes: Mapping[str, RolloutRoute] = {}  # of models under rollout
        self._served: dict[str, ServedModel] = {}
        self._canaries: dict[str, ServedModel] = {}  # by the names that they are served under
        self._access: dict[str, _ReplicaAccess] = {}
        self._live: dict[str, ModelDescription] = {}  # announced, and served
        self._absences = Absences()
        self._declared: frozenset[str] = frozenset()
        self._fallbacks: dict[str, str] = {}
        self.aliases: dict[str, str] = {}  # other names of models, to their own
        self._tasks: dict[str, str] = {}
        self._optional: frozenset[str] = frozenset()
        self._failures: Mapping[str, str] = {}
        self._awaited: set[str] | None = None  # declared at the start, and not seen ready since
        self._all_known = False  # the registry has told of all models
        self.controller_ends: int | None = None  # as in `View`; None before the first one
        self._adopting: dict[str, _Adopting] = {}
        self.draining = False

    async def follow(self) -> None:
        """Follow the registry until cancelled. While it is away, what was known holds."""
        revision, understood = 0, True
        try:
            while True:
                try:
                    watched = self._registry.watch.remote(revision, _WATCH_S)
                    said = await asyncio.wait_for(watched, _WATCH_S + ANSWER_S)
                    view = VIEW.decode(said) if said else None
                    understood = True
                except Exception as fault:
                    if understood or not isinstance(fault, OtherVersion):
                        logger.exception("the registry did not answer; trying again")
                    understood = not isinstance(fault, OtherVersion)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                if view is not None:
                    self._apply(view)
                    revision = view.revision
        finally:
            for adopting in self._adopting.values():
                adopting.task.cancel()

    # ---- lookups --------------------------------------------------------------------------

    def find(self, name: str, version: str | None = None) -> ServedModel:
        """The model of this name. Raises NotFound or NotReady."""
        model = self._served.get(name)
        if model is None:
            if name in self._declared:
                raise errors.NotReady(
                    f"model {name} {self.why_not_ready(name)}",
                    retry_after_s=self._ready_in_s(name),
                )
            raise self.missing(name)
        if version is not None and not is_version(version, model.description.version):
            raise errors.NotFound(
                f"model {name} has no version {version[:_SHOWN_CHARACTERS]!r}; "
                f"the live version is {model.description.version}"
            )
        if not self._takes_requests(name, model):
            gone = f"model {name} has no running replica at the moment"
            failed = f"{gone} and {self.why_not_ready(name)}" if name in self._failures else gone
            raise errors.NotReady(failed, retry_after_s=self._ready_in_s(name))
        return model

    def missing(self, name: str) -> errors.HeadraceError:
        """The error for a name that no model has which the caller may use. NotReady while it may
        yet turn out to be another name of one."""
        if self._all_known:
            return unknown_model(name)
        return errors.NotReady(
            f"whether there is a model {name[:_SHOWN_CHARACTERS]!r} is not known yet",
            retry_after_s=errors.NOT_READY_S,
        )

    def of_kind(self, kind: str, may_use: Callable[[str], bool]) -> tuple[list[str], bool]:
        """The declared models of this kind that the caller may use, ready or not; and whether
        others may turn out to be of it, because nobody has described them yet."""
        names, more = [], not self._all_known
        for name in sorted(filter(may_use, self._declared)):
            served, task = self._served.get(name), self._tasks.get(name, "")
            if kind == (task if served is None else served.description.kind):
                names.append(name)
            elif served is None and name not in self._failures and name not in self._optional:
                # Nobody waits for the others. Of one that embeds only its files tell.
                more |= not task or (task == "embed" and kind in ("sparse", "tokens"))
        return names, more

    def name_of(self, asked: str) -> str:
        """A model's own name, from what a caller calls it: that, or one of its aliases."""
        return asked if asked in self._declared else self.aliases.get(asked, asked)

    def why_not_ready(self, name: str) -> str:
        """What is to be said of a declared model that is not ready."""
        reason = self._failures.get(name)
        return "is declared but not ready yet" if reason is None else f"cannot start: {reason}"

    def fallback_of(self, name: str) -> str:
        """The model that takes what `name` refuses, "": none. Known before `name` is ready."""
        served = self._served.get(name)
        if served is None:
            return self._fallbacks.get(name, "")
        return served.description.reuse.fallback

    def _takes_requests(self, name: str, model: ServedModel) -> bool:
        """A model without a reachable replica takes requests for a while (`Absences`), one that may
        sleep always: their replica may be there before their time is up."""
        if model.replicas > 0:
            return True
        live = name in self._live
        if live and self._may_sleep(name):
            return True
        return self._absences.is_short(name, announced=live)

    def _may_sleep(self, name: str) -> bool:
        outlook = self.outlooks.get(name)
        return outlook is not None and outlook.may_sleep

    def _ready_in_s(self, name: str) -> float:
        """Seconds after which asking again may help."""
        outlook = self.outlooks.get(name)
        in_s = 0.0 if outlook is None else outlook.ready_in_s
        return min(max(in_s, errors.NOT_READY_S), _LONGEST_RETRY_S)

    def ready(self, name: str) -> bool:
        """Whether the model answers: with a reachable replica, or asleep, by waking."""
        model = self._served.get(name)
        if model is None or name not in self._live:
            return False
        return model.replicas > 0 or self._may_sleep(name)

    def asleep(self, name: str) -> bool:
        """Whether the model is ready without a replica."""
        model = self._served.get(name)
        return model is not None and not model.replicas and self.ready(name)

    @property
    def all_ready(self) -> bool:
        """Whether every model that was declared when this gateway started, and is not optional,
        was ready at some time that this was asked; False while draining."""
        if self._awaited:
            self._awaited = {name for name in self._awaited if not self.ready(name)}
            if not self._awaited and self._optional.intersection(self.waiting_for):
                names = ", ".join(sorted(self._optional.intersection(self.waiting_for)))
                logger.warning("ready without models that are optional: %s", names)
        return self._awaited is not None and not self._awaited and not self.draining

    @property
    def caught_up(self) -> bool:
        """Whether every model that runs answers here, as it may at other gateways."""
        return self._all_known and all(self.ready(name) for name in self._live)

    @property
    def descriptions(self) -> list[ModelDescription]:
        return [self._served[name].description for name in sorted(self._served)]

    @property
    def waiting_for(self) -> list[str]:
        """The declared models that are not ready."""
        return sorted(name for name in self._declared if not self.ready(name))

    def is_optional(self, name: str) -> bool:
        """Whether the gateway may be ready without this model."""
        return name in self._optional

    @property
    def declared(self) -> frozenset[str]:
        """Models that ought to exist, ready or not."""
        return self._declared

    @property
    def served(self) -> dict[str, ServedModel]:
        return self._served

    def canary(self, name: str) -> ServedModel | None:
        """The canary of this name, which a route has; None: no replica of it can be reached."""
        found = self._canaries.get(name)
        return found if found is not None and found.replicas else None

    @property
    def queued(self) -> dict[str, ServedModel]:
        """All models that have a queue, canaries included (by the names in their routes)."""
        return {**self._served, **self._canaries}

    @property
    def frozen(self) -> bool:
        return self._identity.frozen

    def freeze(self, frozen: bool) -> None:
        """Stop all learning in every model's core, future ones included, or let it go on."""
        if frozen == self._identity.frozen:
            return
        self._identity = replace(self._identity, frozen=frozen)
        for served in self.queued.values():
            served.freeze(frozen)

    def take_place(self, gateway: str, others: Collection[str]) -> None:
        """Tell every model's core the place of this gateway, whose name is `gateway`, among those
        that live. All gateways agree on it, because they sort the same names."""
        index = sum(other < gateway for other in others)
        for served in self.queued.values():
            served.queue.take_place(index, 1 + len(others))

    def adapt(self, by_hand: Mapping[str, Mapping[str, str | None]]) -> None:
        """What operators have changed of models' adapters, future models' included."""
        self._adapters_by_hand = by_hand
        for name, served in self.queued.items():
            served.adapt(by_hand.get(model_of(name), {}))

    def take_outlooks(self, outlooks: Mapping[str, ModelOutlook], age_s: float) -> None:
        """Take in what the autoscaler said of the models `age_s` seconds ago."""
        self.outlooks, self._outlooks_at = outlooks, time.monotonic() - age_s
        for name in self._served:
            self._expect_capacity(name, age_s)

    def _expect_capacity(self, name: str, age_s: float) -> None:
        """Tell the model's queue when the autoscaler, as heard `age_s` seconds ago, expects a
        replica of those that it lacks."""
        # Not for what must run: its connection may be back before a new replica is.
        outlook, queue = self.outlooks.get(name, _UNKNOWN), self._served[name].queue
        wakes = queue.replicas and queue.strands(outlook.wakes_up_to)
        expected = wakes or (outlook.may_sleep and not queue.replicas)
        queue.expect_capacity(max(0.0, outlook.ready_in_s - age_s) if expected else 0.0)

    def _unlisted(self, name: str) -> None:
        """The model's last replica has gone: the next request is told at once what a start takes,
        and not only from the autoscaler's next answer on."""
        if name in self._served:
            self._expect_capacity(name, time.monotonic() - self._outlooks_at)

    def _check_stranded(self, name: str, longest: int, for_s: float) -> None:
        """Rows for which only other replicas run wait as if none ran: for a while, or as long as
        they like for a group that they wake. Else raises NotReady."""
        if for_s < HOLD_S or longest <= self.outlooks.get(name, _UNKNOWN).wakes_up_to:
            return
        failed = f" and {self.why_not_ready(name)}" if name in self._failures else ""
        raise errors.NotReady(
            f"model {name} has no running replica at the moment that takes a row of length "
            f"{longest}{failed}",
            retry_after_s=self._ready_in_s(name),
        )

    # ---- following ------------------------------------------------------------------------

    def _apply(self, view: View) -> None:
        """Adopt a view of the registry. Models that are gone are closed at once. Each new version
        is taken in by a task of its own, so that one that does not answer delays no other."""
        declared, live = view.declared, view.models
        self._pool.take(view.pool, complete=view.complete)
        self.draining = view.draining or (self.draining and not view.complete)
        if self.draining:
            self.on_drain()
        if not view.complete:
            declared, live = declared | self._declared, {**self._live, **live}
        self._declared = frozenset(name for name in declared if not is_canary(name))
        self.routes = view.rollouts if view.complete else {**self.routes, **view.rollouts}
        self._fallbacks = view.fallbacks if view.complete else {**self._fallbacks, **view.fallbacks}
        self.aliases = view.aliases if view.complete else {**self.aliases, **view.aliases}
        self._tasks = view.tasks if view.complete else {**self._tasks, **view.tasks}
        self._optional = view.optional if view.complete else self._optional | view.optional
        self._all_known = self._all_known or view.complete
        self._failures = view.failures if view.complete else {**self._failures, **view.failures}
        self.controller_ends = view.controller_ends
        if self._awaited is None and self._declared and view.complete:
            self._awaited = set(self._declared)
        if self._awaited is not None:
            self._awaited &= declared - self._optional
        for name in self.queued.keys() - declared:
            self._table_of(name).pop(name).close()
            self._access.pop(name, None)
        for name in self._live.keys() - live.keys():
            self._absences.unannounced(name)
            del self._live[name]
        self._absences.keep(self._served)
        for name in self._adopting.keys() - live.keys():
            self._adopting.pop(name).task.cancel()
        for description in live.values():
            self._adopt(description)
        self.on_change()

    def _adopt(self, description: ModelDescription) -> None:
        name = description.name
        served, begun = self._table_of(name).get(name), self._adopting.get(name)
        if begun is not None and begun.description == description:
            return
        if begun is not None:
            self._adopting.pop(name).task.cancel()
        if served is not None and served.announced == _public_description(description):
            self._live[name] = description
            return
        task = asyncio.get_running_loop().create_task(self._serve_with_retries(description))
        self._adopting[name] = _Adopting(description, task)

    async def _serve_with_retries(self, description: ModelDescription) -> None:
        while True:
            try:
                await self._serve(description)
                break
            except Exception:
                logger.exception(
                    "a model cannot be served; trying again", extra={"model": description.name}
                )
                await asyncio.sleep(_PAUSE_S)
        del self._adopting[description.name]
        self._live[description.name] = description
        self.on_change()

    async def _serve(self, description: ModelDescription) -> None:
        name = description.name
        tokenizer, shown = await self._tokenizer(description), _public_description(description)
        served = self._table_of(name).get(name)
        if served is not None and served.is_like(description):
            await self._access[name].reach(description)
            served.replace(shown, tokenizer)
            return
        access = _ReplicaAccess(
            self._connect(
                model_app(name),
                self._identity.gateway,
                sends_heartbeats=description.generating is not None,
            ),
            JoinedDirectories(),
        )
        try:
            await access.reach(description)
        except BaseException:
            access.channel.close()
            raise
        access.directories.add(self._pool.directory(name))
        if served is not None:
            served.close()
        self._access[name] = access
        self._table_of(name)[name] = served = ServedModel(
            shown, tokenizer, access.channel, access.directories, self._identity,
            lambda _, record: self._on_batch(name, record),
        )  # fmt: skip
        served.adapt(self._adapters_by_hand.get(model_of(name), {}))
        served.queue.keeps_unreached = not is_canary(name)
        if self.decisions is not None:
            served.log_decisions(self.decisions)
        served.queue.on_crossing = lambda: self.on_crossing()
        served.queue.on_stranded = lambda *longest: self._check_stranded(name, *longest)
        served.queue.on_reached = lambda: self._absences.reached(name, announced=name in self._live)
        served.on_unlisted = lambda: self._unlisted(name)
        served.on_live = lambda: self.on_change()

    def _table_of(self, name: str) -> dict[str, ServedModel]:
        """The table that holds this name: of canaries or of models."""
        return self._canaries if is_canary(name) else self._served

    async def _tokenizer(self, d: ModelDescription) -> TextTokenizer | None:
        if not d.tokenizer_digest or d.task == "tensors":
            return None
        served = self._table_of(d.name).get(d.name)
        if served is not None and _tokenize_alike(served.description, d):
            return served.tokenizer
        asked = self._registry.blob.remote(d.tokenizer_digest)
        blob: bytes = await asyncio.wait_for(asked, _BLOB_S)
        return tokenizer_of(d, blob, self._cache_bytes)


def tokenizer_of(d: ModelDescription, tokenizer_json: bytes, cache_bytes: int) -> TextTokenizer:
    """As the model reads texts."""
    reranks, how = d.task == "rerank", d.token_vectors
    truncate = d.truncate or reranks  # of a pair the document is cut in any case
    markers = how.markers if how else ()
    made = TextTokenizer(tokenizer_json, d.max_length, truncate, cache_bytes, markers)
    if reranks and how is not None:
        made.pairs = pairs.Apart(how, *made.around, d.truncate)
    elif reranks and d.pair_prompt is not None:
        (ends,) = made.encode([d.pair_prompt.ends])
        before, after = made.around
        tail = tuple(ends[before : len(ends) - after].tolist())
        made.pairs = pairs.PairTemplate(before, after, (), (), tail, typed=False)
    elif reranks:
        made.pairs = pairs.template(tokenizer_json)
    return made


def unknown_model(name: str) -> errors.NotFound:
    """The error for a model that is not there, or that the caller may not use: both alike, so that
    nobody learns what there is for others."""
    return errors.NotFound(
        f"unknown model {name[:_SHOWN_CHARACTERS]!r}; GET /v1/models lists the models",
        param="model",
    )


def _public_description(d: ModelDescription) -> ModelDescription:
    """As callers see it: a canary has its model's name. It records nothing, the live version
    records its requests too."""
    return replace(d, name=model_of(d.name), recording=None) if is_canary(d.name) else d


def _tokenize_alike(a: ModelDescription, b: ModelDescription) -> bool:
    """Whether both make the same tokens of a text, so that one's tokeniser serves the other."""
    return (a.task, a.tokenizer_digest, a.max_length, a.truncate) == (
        b.task, b.tokenizer_digest, b.max_length, b.truncate,
    ) and (a.token_vectors, a.pair_prompt) == (b.token_vectors, b.pair_prompt)  # fmt: skip
