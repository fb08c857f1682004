"""What the replicas of a model's groups say of it, as they come up, made one description.

One replica of each group is asked, and asked again until one answers that has this version's
settings: during a change replicas of both versions run. The model is described once one group is;
a group that comes up later, or never, holds up nothing. A model without groups has one that has no
name. A group whose answers could not stand for the others' is left out, and the log says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from deployments.contract.description import ModelDescription
from deployments.contract.groups import combined
from deployments.settings.load import settings_digest

_AGAIN_S = 0.1
_PAUSE_S = 2.0
logger = logging.getLogger("headrace.anchor")


@dataclass(frozen=True, slots=True)
class _Group:
    """`replicas`: handle of its Serve deployment. `written`: the settings that its replicas are
    started with."""

    name: str
    written: dict[str, Any]
    after_s: float
    replicas: Any

    @property
    def digest(self) -> str:
        return settings_digest(self.written)


class DescribedGroups:
    """`args`: the application's, see `serve_config`; `handles`: of its deployments, in the order of
    `args["groups"]`, or the one of a model without."""

    def __init__(self, args: dict[str, Any], handles: Sequence[Any]) -> None:
        self._model: str = args["name"]
        self._settings: dict[str, Any] = args["settings"]
        groups = args.get("groups") or [{"name": "", "settings": args["settings"], "after_s": 0.0}]
        self._groups = [
            _Group(group["name"], group["settings"], group["after_s"], handle)
            for group, handle in zip(groups, handles, strict=True)
        ]
        self._parts: dict[str, ModelDescription] = {}
        self._tokenizer = b""
        self._version = ""
        self._refused: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.changed = asyncio.Event()

    def start(self) -> None:
        """Asks all of them; `changed` is set each time a group has been described."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._until_described(group)) for group in self._groups]

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def current(self) -> tuple[ModelDescription, bytes]:
        """The model as far as its groups have been described, at least one, and the bytes of its
        tokeniser; generation 0."""
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
        digests = [group.digest for group in self._groups]
        whole = settings_digest({"settings": self._settings, "groups": digests})
        return replace(description, version=self._version, digest=whole), self._tokenizer

    async def _until_described(self, group: _Group) -> None:
        while True:
            try:
                if await self._described(group):
                    return
                await asyncio.sleep(_AGAIN_S)
            except asyncio.CancelledError:
                raise
            except Exception:
                logger.exception(
                    "asking a replica failed; trying again", extra={"model": self._model}
                )
                await asyncio.sleep(_PAUSE_S)

    async def _described(self, group: _Group) -> bool:
        """False where the replica that answered was started with other settings."""
        description, tokenizer = await group.replicas.describe.remote()
        if description.digest != group.digest:
            return False
        if group.name and not self._version:
            views = [each.written for each in self._groups]
            self._version = await group.replicas.version.remote(views)
        self._tokenizer = self._tokenizer or tokenizer
        self._parts[group.name] = description
        self.changed.set()
        return True
