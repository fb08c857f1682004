"""The models a gateway serves: follows the registry, keeps one `ServedModel` each.

A model that is declared and was ready is kept while it changes hands (its queue holds); one that is
no longer declared is closed: what waits is refused, what runs finishes. Looking a model up answers
404 for undeclared, 503 for declared and not ready, or where it is not known yet which are declared.
A model that may sleep is ready without replicas: its queue takes requests, and they wake it.
A model's canary is served like a model and is none: nobody finds it, lists it or waits for it; only
who asks for the `canary` of a route gets it, by the model's own name, and what waits for its
replicas when the last of them goes is turned away, for the live version to answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from deployments.contract import errors
from deployments.contract.app_names import POOL_DIRECTORY, directory_key, model_app
from deployments.contract.description import GatewayIdentity, ModelDescription
from deployments.contract.preprocess.tokenizer import TextTokenizer
from deployments.contract.registry import ANSWER_S, View
from deployments.contract.replica_directory import JoinedDirectories, directory_for
from deployments.contract.rollout.rollout import RolloutRoute
from deployments.contract.rollout.terms import is_canary, model_of
from deployments.contract.scaling.messages import ModelOutlook
from deployments.gateway.queues.absences import Absences
from deployments.gateway.queues.pending_requests import BatchRecord
from deployments.gateway.queues.pool_members import PoolMembers
from deployments.gateway.queues.replica_channel import ReplicaChannel
from deployments.gateway.queues.serve_handles import ServeChannel, follow_pool
from deployments.gateway.queues.served_model import ServedModel

_WATCH_S = 5.0
_BLOB_S = 30.0  # some megabytes
_RETRY_AFTER_S = 2.0
_LONGEST_RETRY_S = 60.0
_PAUSE_S = 0.5
_SHOWN = 100
logger = logging.getLogger("headrace.catalogue")


@dataclass(frozen=True, slots=True)
class _Adopting:
    description: ModelDescription
    task: asyncio.Task[None]


class SeededChannel(ReplicaChannel, Protocol):
    async def seed(self, groups: Sequence[str]) -> None:
        """Replicas of these groups ("": of a model without) are heard of from now on."""


class Connect(Protocol):
    """Makes the channel to a model's replicas; `speaks`: they generate."""

    def __call__(self, app: str, gateway: str, *, speaks: bool) -> SeededChannel: ...


@dataclass(frozen=True, slots=True)
class _Way:
    """To the replicas of all groups of a model, and who they are."""

    channel: SeededChannel
    directories: JoinedDirectories

    async def reach(self, description: ModelDescription) -> None:
        """Also those of groups that have come up since. Raises what Serve raises."""
        groups = list(description.group_digests())
        await self.channel.seed(groups)
        for group in groups:
            self.directories.add(directory_for(directory_key(description.name, group)))


class Catalogue:
    """`identity`: this gateway, as its queues know it. `cache_bytes`: bound of each tokeniser's
    cache of frequent texts. `on_change` is called when the set of models has changed, before the
    loop's next turn; `on_crossing`: see `CoreLoop`. `routes`: of models under rollout."""

    def __init__(
        self,
        registry: Any,
        identity: GatewayIdentity,
        cache_bytes: int,
        on_batch: Callable[[str, BatchRecord], None],
        connect: Connect = ServeChannel,
        follow_pool: Callable[[], None] = follow_pool,
    ) -> None:
        self._registry = registry
        self._identity = identity
        self._cache_bytes = cache_bytes
        self._on_batch = on_batch
        self._connect = connect
        self._pool = PoolMembers(directory_for(POOL_DIRECTORY), follow_pool)
        self.on_change: Callable[[], None] = lambda: None
        self.on_crossing: Callable[[], None] = lambda: None
        self.outlooks: Mapping[str, ModelOutlook] = {}
        self.routes: Mapping[str, RolloutRoute] = {}
        self._served: dict[str, ServedModel] = {}
        self._canaries: dict[str, ServedModel] = {}
        self._ways: dict[str, _Way] = {}
        self._live: dict[str, ModelDescription] = {}
        self._absences = Absences()
        self._declared: frozenset[str] = frozenset()
        self._fallbacks: dict[str, str] = {}
        self._optional: frozenset[str] = frozenset()
        self._awaited: set[str] | None = None
        self._all_known = False
        self.controller_ends: int | None = None  # as in `View`; None before the first one
        self._adopting: dict[str, _Adopting] = {}
        self.draining = False

    async def follow(self) -> None:
        """Runs until cancelled; a registry that is away for a moment changes nothing."""
        revision = 0
        try:
            while True:
                try:
                    watched = self._registry.watch.remote(revision, _WATCH_S)
                    view: View = await asyncio.wait_for(watched, _WATCH_S + ANSWER_S)
                except Exception:
                    logger.exception("the registry did not answer; trying again")
                    await asyncio.sleep(_PAUSE_S)
                    continue
                if view.revision != revision:
                    self._take(view)
                revision = view.revision
        finally:
            for adopting in self._adopting.values():
                adopting.task.cancel()

    # ---- lookups --------------------------------------------------------------------------

    def find(self, name: str, version: str | None = None) -> ServedModel:
        """Raises NotFound or NotReady."""
        model = self._served.get(name)
        if model is None:
            if name in self._declared:
                raise errors.NotReady(
                    f"model {name} is declared but not ready yet",
                    retry_after_s=self._ready_in_s(name),
                )
            if not self._all_known:
                raise errors.NotReady(
                    f"whether there is a model {name[:_SHOWN]!r} is not known yet",
                    retry_after_s=_RETRY_AFTER_S,
                )
            raise unknown_model(name)
        if version is not None and version != model.description.version:
            raise errors.NotFound(
                f"model {name} has no version {version[:_SHOWN]!r}; "
                f"the live version is {model.description.version}"
            )
        if not self._takes(name, model):
            raise errors.NotReady(
                f"model {name} has no running replica at the moment",
                retry_after_s=self._ready_in_s(name),
            )
        return model

    def fallback_of(self, name: str) -> str:
        """The model that takes what `name` refuses, "" for none; also while it is not ready yet."""
        served = self._served.get(name)
        if served is None:
            return self._fallbacks.get(name, "")
        return served.description.reuse.fallback

    def _takes(self, name: str, model: ServedModel) -> bool:
        """A model that changes hands, or none of whose replicas can be reached, keeps taking
        requests for a while: its replica may be back before their time is up. One that may sleep
        takes them for good."""
        if model.replicas > 0:
            return True
        live = name in self._live
        if live and self._may_sleep(name):
            return True
        return self._absences.is_short(name, announced=live)

    def _may_sleep(self, name: str) -> bool:
        outlook = self.outlooks.get(name)
        return outlook is not None and outlook.asleep_ok

    def _ready_in_s(self, name: str) -> float:
        """After which asking again may help."""
        outlook = self.outlooks.get(name)
        in_s = 0.0 if outlook is None else outlook.ready_in_s
        return min(max(in_s, _RETRY_AFTER_S), _LONGEST_RETRY_S)

    def ready(self, name: str) -> bool:
        """Whether it answers: by a replica that can be reached, or asleep, by waking."""
        model = self._served.get(name)
        if model is None or name not in self._live:
            return False
        return model.replicas > 0 or self._may_sleep(name)

    def asleep(self, name: str) -> bool:
        """Whether it answers without a replica."""
        model = self._served.get(name)
        return model is not None and not model.replicas and self.ready(name)

    @property
    def all_ready(self) -> bool:
        """Every model that was declared when this gateway started, and is not optional, has been
        ready, when asked."""
        if self._awaited:
            self._awaited = {name for name in self._awaited if not self.ready(name)}
            if not self._awaited and self._optional.intersection(self.waiting_for):
                names = ", ".join(sorted(self._optional.intersection(self.waiting_for)))
                logger.warning("ready without models that are optional: %s", names)
        return self._awaited is not None and not self._awaited and not self.draining

    @property
    def descriptions(self) -> list[ModelDescription]:
        return [self._served[name].description for name in sorted(self._served)]

    @property
    def waiting_for(self) -> list[str]:
        """Declared models that are not ready."""
        return sorted(name for name in self._declared if not self.ready(name))

    def is_optional(self, name: str) -> bool:
        """Whether readiness does without it."""
        return name in self._optional

    @property
    def declared(self) -> frozenset[str]:
        """Models that ought to exist, ready or not."""
        return self._declared

    @property
    def served(self) -> dict[str, ServedModel]:
        return self._served

    def canary(self, name: str) -> ServedModel | None:
        """By the name that it is served under; None while no replica of it can be reached."""
        found = self._canaries.get(name)
        return found if found is not None and found.replicas else None

    @property
    def queued(self) -> dict[str, ServedModel]:
        """All that have a queue: what is served, and canaries by the names they are served
        under."""
        return {**self._served, **self._canaries}

    @property
    def frozen(self) -> bool:
        return self._identity.frozen

    def freeze(self, frozen: bool) -> None:
        """Stops all that learns in every model's core, in those to come too, or lets it go on."""
        if frozen == self._identity.frozen:
            return
        self._identity = replace(self._identity, frozen=frozen)
        for served in self.queued.values():
            served.freeze(frozen)

    def take_outlooks(self, outlooks: Mapping[str, ModelOutlook], age_s: float) -> None:
        """What the autoscaler says of the models, so long ago."""
        self.outlooks = outlooks
        for name, served in self._served.items():
            # Of one that must run nothing is expected: its connection may be back before.
            expected = self._may_sleep(name) and not served.replicas
            in_s = outlooks[name].ready_in_s - age_s if expected else 0.0
            served.queue.expect_capacity(max(0.0, in_s))

    # ---- following ------------------------------------------------------------------------

    def _take(self, view: View) -> None:
        """What is gone goes at once; what is new is taken in by a task a model, so that one that
        does not answer holds up no other."""
        declared, live = view.declared, view.models
        self._pool.take(view.pool, complete=view.complete)
        self.draining = view.draining or (self.draining and not view.complete)
        if not view.complete:
            declared, live = declared | self._declared, {**self._live, **live}
        self._declared = frozenset(name for name in declared if not is_canary(name))
        self.routes = view.rollouts if view.complete else {**self.routes, **view.rollouts}
        self._fallbacks = view.fallbacks if view.complete else {**self._fallbacks, **view.fallbacks}
        self._optional = view.optional if view.complete else self._optional | view.optional
        self._all_known = self._all_known or view.complete
        self.controller_ends = view.controller_ends
        if self._awaited is None and self._declared and view.complete:
            self._awaited = set(self._declared)
        if self._awaited is not None:
            self._awaited &= declared - self._optional
        for name in self.queued.keys() - declared:
            self._kept(name).pop(name).close()
            self._ways.pop(name, None)
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
        served, begun = self._kept(name).get(name), self._adopting.get(name)
        if begun is not None and begun.description == description:
            return
        if begun is not None:
            self._adopting.pop(name).task.cancel()
        if served is not None and served.announced == _as_shown(description):
            self._adopted(description)
            return
        task = asyncio.get_running_loop().create_task(self._until_served(description))
        self._adopting[name] = _Adopting(description, task)

    async def _until_served(self, description: ModelDescription) -> None:
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
        self._adopted(description)
        self.on_change()

    def _adopted(self, description: ModelDescription) -> None:
        self._live[description.name] = description

    async def _serve(self, description: ModelDescription) -> None:
        name = description.name
        tokenizer, shown = await self._tokenizer(description), _as_shown(description)
        served = self._kept(name).get(name)
        if served is not None and served.is_like(description):
            await self._ways[name].reach(description)
            served.replace(shown, tokenizer)
            return
        way = _Way(
            self._connect(
                model_app(name), self._identity.gateway, speaks=description.generating is not None
            ),
            JoinedDirectories(),
        )
        try:
            await way.reach(description)
        except BaseException:
            way.channel.close()
            raise
        way.directories.add(self._pool.directory(name))
        if served is not None:
            served.close()
        self._ways[name] = way
        self._kept(name)[name] = served = ServedModel(
            shown, tokenizer, way.channel, way.directories, self._identity,
            lambda _, record: self._on_batch(name, record),
        )  # fmt: skip
        served.queue.keeps_unreached = not is_canary(name)
        served.queue.on_crossing = lambda: self.on_crossing()
        served.queue.on_reached = lambda: self._absences.reached(name, announced=name in self._live)
        served.on_live = lambda: self.on_change()

    def _kept(self, name: str) -> dict[str, ServedModel]:
        """Where that which is served under this name is kept."""
        return self._canaries if is_canary(name) else self._served

    async def _tokenizer(self, d: ModelDescription) -> TextTokenizer | None:
        if not d.tokenizer_digest or d.task == "tensors":
            return None
        served = self._kept(d.name).get(d.name)
        if served is not None and _same_texts(served.description, d):
            return served.tokenizer
        asked = self._registry.blob.remote(d.tokenizer_digest)
        blob: bytes = await asyncio.wait_for(asked, _BLOB_S)
        return TextTokenizer(blob, d.max_length, d.truncate, self._cache_bytes)


def unknown_model(name: str) -> errors.NotFound:
    """Also where the caller may not know of it: nobody is told what there is for others."""
    return errors.NotFound(
        f"unknown model {name[:_SHOWN]!r}; GET /v1/models lists the models", param="model"
    )


def _as_shown(d: ModelDescription) -> ModelDescription:
    """A canary by its model's name, as its callers know it; what they send is recorded by the live
    version."""
    return replace(d, name=model_of(d.name), recording=None) if is_canary(d.name) else d


def _same_texts(a: ModelDescription, b: ModelDescription) -> bool:
    """Whether both make the same tokens of a text, so that the cache of one serves the other."""
    return (a.task, a.tokenizer_digest, a.max_length, a.truncate) == (
        b.task, b.tokenizer_digest, b.max_length, b.truncate,
    )  # fmt: skip
