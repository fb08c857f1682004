"""Combines what replicas of a model's groups say of the model, as they come up, into a description.

Of each group, one replica that has this version's settings is asked; during a change, replicas of
both versions run. Its description is stored under those settings, and stands for the model later
while no replica runs. The model counts as described once one group is; a group that comes up later,
or never, delays nothing. A model without groups has one group, with the name "". A group that takes
or gives something else than the others is left out, and the log says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from deployments.contract.description import ModelDescription
from deployments.process.description_store import StoredDescription
from deployments.replica.groups import combined
from deployments.settings.plain import settings_digest

_PAUSE_S = 2.0  # before another try
logger = logging.getLogger("headrace.anchor")


class Asked(Protocol):
    """One group's replicas, see `GroupReplicas`."""

    async def describe(self, digest: str) -> tuple[ModelDescription, bytes]: ...
    async def version(self, digest: str, views: list[dict[str, Any]]) -> str: ...
    def stop(self) -> None: ...


class Store(Protocol):
    """As the module `description_store`; both functions block."""

    def put(self, model: str, group: str, stored: StoredDescription) -> None: ...
    def get(self, model: str, group: str, settings: str) -> StoredDescription | None: ...


@dataclass(frozen=True, slots=True)
class _Group:
    """One group of the model."""

    name: str
    written: dict[str, Any]  # the settings that its replicas are started with
    after_s: float  # see `GroupDescription`
    replicas: Asked

    @property
    def digest(self) -> str:
        return settings_digest(self.written)


class DescribedGroups:
    """The model's description so far.

    `args`: the application's, see `serve_config`. `replicas`: of each group in the order of
    `args["groups"]`, or one entry for a model without groups. `changed` is set when a group has
    been described; `recalled` once stored descriptions have been looked for.
    """

    def __init__(self, args: dict[str, Any], replicas: Sequence[Asked], store: Store) -> None:
        self._model: str = args["name"]
        self._settings: dict[str, Any] = args["settings"]
        groups = args.get("groups") or [{"name": "", "settings": args["settings"], "after_s": 0.0}]
        self._groups = [
            _Group(group["name"], group["settings"], group["after_s"], asked)
            for group, asked in zip(groups, replicas, strict=True)
        ]
        self._store = store
        self._parts: dict[str, ModelDescription] = {}  # by group
        self._tokenizer = b""
        self._version = ""  # of all groups together
        self._refused: dict[str, str] = {}  # group: why it is left out
        self._tasks: list[asyncio.Task[None]] = []
        self.changed = asyncio.Event()
        self._any_described = asyncio.Event()  # set once any group has been described
        self.recalled = asyncio.Event()

    def start(self) -> None:
        """Ask all groups. `changed` is set each time a group has been described."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._until_described(group)) for group in self._groups]
        self._tasks.append(loop.create_task(self._recall()))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for group in self._groups:
            group.replicas.stop()

    async def wait_known(self, within_s: float) -> None:
        """Return once the model is described, or after `within_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._any_described.wait()

    @property
    def known(self) -> bool:
        """Whether the model has been described, now or before."""
        return bool(self._parts)

    def current(self) -> tuple[ModelDescription, bytes]:
        """The model from the groups described so far, which must be at least one, and the
        tokeniser's bytes. Generation is 0."""
        if not self._groups[0].name:
            return self._parts[""], self._tokenizer
        after_s = {group.name: group.after_s for group in self._groups}
        description, refused = combined(self._parts, after_s)
        for name, reason in refused.items():
            if self._refused.get(name) != reason:
                logger.error(
                    "group %s gets no requests: %s", name, reason, extra={"model": self._model}
                )
        self._refused = refused
        whole = self._all_settings()
        return replace(description, version=self._version, digest=whole), self._tokenizer

    def _all_settings(self) -> str:
        digests = [group.digest for group in self._groups]
        return settings_digest({"settings": self._settings, "groups": digests})

    async def _until_described(self, group: _Group) -> None:
        while True:
            try:
                await self._described(group)
                return
            except asyncio.CancelledError:
                raise
            except Exception:
                logger.exception(
                    "asking a replica failed; trying again", extra={"model": self._model}
                )
                await asyncio.sleep(_PAUSE_S)

    async def _recall(self) -> None:
        """Use the stored descriptions under these settings, for groups that no replica has
        described yet."""
        settings = self._all_settings()
        for group in self._groups:
            stored = await self._stored(group, settings)
            if stored is not None and group.name not in self._parts:
                self._take(group, stored)
        self.recalled.set()

    async def _stored(self, group: _Group, settings: str) -> StoredDescription | None:
        while True:
            try:
                return await asyncio.to_thread(self._store.get, self._model, group.name, settings)
            except Exception:
                logger.exception("the store does not answer", extra={"model": self._model})
                await asyncio.sleep(_PAUSE_S)

    async def _described(self, group: _Group) -> None:
        description, tokenizer = await group.replicas.describe(group.digest)
        version = ""
        if group.name:
            views = [each.written for each in self._groups]
            version = await group.replicas.version(group.digest, views)
        said = StoredDescription(self._all_settings(), description, tokenizer, version)
        self._take(group, said)
        await asyncio.to_thread(self._store.put, self._model, group.name, said)

    def _take(self, group: _Group, said: StoredDescription) -> None:
        self._version = said.version or self._version
        self._tokenizer = said.tokenizer or self._tokenizer
        if self._parts.get(group.name) != said.description:
            self._parts[group.name] = said.description
            self.changed.set()
            self._any_described.set()
