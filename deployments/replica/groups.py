"""Combines what replicas of a model's groups say of the model, as they come up, into a description.

Of each group, one replica that has this version's settings is asked. Its description is stored
under those settings, and stands for the model later while no replica runs. The model counts as
described once one group is; a group that comes up later, or never, delays nothing. A model without
groups has one group, with the name "".

The first group that was described says what the model takes and gives. A group that takes or gives
anything else is left out, with the reason. Costs, batches, slots and caches are kept by group. For
what may not differ (edges that a compiled backend fixes; the longest row, except in groups whose
settings say their own) the narrowest holds.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from deployments.contract.description import (
    DESCRIPTION,
    Generating,
    GroupDescription,
    ModelDescription,
)
from deployments.process import description_store
from deployments.process.description_store import StoredDescription
from deployments.process.replica_directory import ReplicaDirectory, RunningReplica
from deployments.settings.lengths import LengthSettings, bucket_edges
from deployments.settings.plain import settings_digest

_MUST_EQUAL = (
    "task", "inputs", "outputs", "lengths_input", "lengths_axis", "mask_input", "optional_inputs",
    "tokenizer_digest", "embed_output", "embed_width", "embedding", "image", "classes", "pads",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupLengths:
    """Which lengths groups take, of a model where not all groups take all."""

    edges: tuple[int, ...]  # of the whole model's buckets, as its settings start them
    longest: Mapping[str, int]  # row, by group; a group that is not named takes all lengths

    @classmethod
    def of(cls, lengths: LengthSettings, longest: Mapping[str, int | None]) -> GroupLengths | None:
        """`longest`: by group; None: all lengths. None where all groups take all lengths."""
        said = {name: most for name, most in longest.items() if most is not None}
        return cls(bucket_edges(lengths), said) if said else None


def combined(
    parts: Mapping[str, ModelDescription],
    after_s: Mapping[str, float],
    lengths: GroupLengths | None = None,
) -> tuple[ModelDescription, dict[str, str]]:
    """The combined description, and for each group that is left out, the reason.

    `parts`: what a replica of each group said, at least one, in the order in which they came.
    `after_s`: for every group in the settings, in their order, its wait as a reserve, or 0 if it is
    none. `lengths`: None where all groups take all lengths. Version and digest are the first
    part's; the caller replaces them.
    """
    base = next(iter(parts.values()))
    refused: dict[str, str] = {}
    fixed = [part.bucket_edges for part in parts.values() if _is_fixed(part)]
    edges = next(iter(fixed), ())
    if lengths is not None:
        edges = max(fixed, key=lambda each: each[-1], default=())
    for name, part in parts.items():
        reason = _unlike(base, part)
        if not reason and _is_fixed(part) and not _fits(part, edges, lengths is not None):
            reason = (
                f"it is compiled for the lengths {part.bucket_edges}, another group for {edges}"
            )
        if reason:
            refused[name] = reason
    kept = {name: part for name, part in parts.items() if name not in refused}
    groups = tuple(_group(n, kept[n], reserve_s) for n, reserve_s in after_s.items() if n in kept)
    whole = _narrowest(base, list(kept.values()), groups)
    return (whole if lengths is None else _by_length(whole, kept, edges, lengths)), refused


def _fits(part: ModelDescription, edges: tuple[int, ...], may_be_shorter: bool) -> bool:
    """Whether a compiled group takes rows padded to these edges. One of shorter rows may have edges
    of its own beside them."""
    if may_be_shorter and part.max_length < edges[-1]:
        return set(part.bucket_edges) >= {edge for edge in edges if edge <= part.max_length}
    return part.bucket_edges == edges


def version_of(versions: Sequence[str]) -> str:
    """The version of a model from its groups' own versions: 12 hex digits over all of them, or the
    one version that they share."""
    if len(set(versions)) == 1:
        return versions[0]
    return hashlib.sha256(" ".join(versions).encode()).hexdigest()[:12]


def _group(name: str, part: ModelDescription, after_s: float) -> GroupDescription:
    core = part.scheduling.core
    most = core.max_size if part.max_rows is None else min(core.max_size, part.max_rows)
    return GroupDescription(
        name=name,
        digest=part.digest,
        platform=part.platform,
        precision=part.precision,
        device=part.device,
        slots=part.scheduling.slots,
        max_size=most,
        after_s=after_s,
        profile=part.profile,
        profile_from=part.profile_from,
        generating=part.generating,
        max_tokens=core.max_tokens,
    )


def _by_length(
    whole: ModelDescription,
    parts: Mapping[str, ModelDescription],
    fixed: tuple[int, ...],
    lengths: GroupLengths,
) -> ModelDescription:
    """The description of a model whose groups take different lengths. Rows may be as long as the
    groups without a bound take them, or, while none of those was described, as the settings say.
    Every bound is an edge of buckets. `fixed`: the edges that backends are compiled for."""
    free = [part for name, part in parts.items() if name not in lengths.longest]
    longest = min([part.max_length for part in free], default=lengths.edges[-1])
    bounds = {name: most for name, most in lengths.longest.items() if most < longest}
    started = free[0].bucket_edges if free else lengths.edges
    edges = {*fixed, *(edge for edge in started if edge > max(fixed, default=0)), *bounds.values()}
    groups = tuple(replace(each, max_length=bounds.get(each.name)) for each in whole.groups)
    tops = tuple(sorted({longest, *(edge for edge in edges if edge < longest)}))
    recording = whole.recording and replace(whole.recording, edges=tops)
    return replace(whole, max_length=longest, bucket_edges=tops, groups=groups, recording=recording)


def _narrowest(
    base: ModelDescription, parts: Sequence[ModelDescription], groups: tuple[GroupDescription, ...]
) -> ModelDescription:
    # `shaped`: a group whose backend is compiled for fixed lengths. Its edges go before all others.
    shaped = next((part for part in parts if _is_fixed(part)), None)
    short = min(parts, key=lambda part: part.max_length)
    edges = shaped or (short if short.max_length < base.max_length else base)
    core = replace(
        base.scheduling.core,
        max_size=max(group.max_size for group in groups),
        max_tokens=max(part.scheduling.core.max_tokens for part in parts),
    )
    if shaped is not None:
        core = replace(core, buckets=shaped.scheduling.core.buckets)
    depend = any(part.rows_depend for part in parts)
    return replace(
        base,
        max_length=short.max_length,
        bucket_edges=edges.bucket_edges,
        max_rows=None,
        scheduling=replace(base.scheduling, core=core, slots=max(group.slots for group in groups)),
        rows_depend=depend,
        reuse=base.reuse.of_dependent_rows() if depend else base.reuse,
        generating=_engines([part.generating for part in parts if part.generating is not None]),
        groups=groups,
    )


def _engines(engines: Sequence[Generating]) -> Generating | None:
    """What holds for every engine. Prompts share blocks only if all engines cut them alike."""
    if not engines:
        return None
    blocks = {engine.block_tokens for engine in engines}
    return replace(
        engines[0],
        context_tokens=min(engine.context_tokens for engine in engines),
        block_tokens=blocks.pop() if len(blocks) == 1 else 0,
    )


def _unlike(base: ModelDescription, part: ModelDescription) -> str:
    """Why the group's answers could not stand for the other groups'; "" if they can."""
    if (base.generating is None) is not (part.generating is None):
        return "it generates, or the others do"
    differs = [name for name in _MUST_EQUAL if getattr(base, name) != getattr(part, name)]
    return f"its {' and '.join(differs)} differ from the other groups'" if differs else ""


def _is_fixed(part: ModelDescription) -> bool:
    return part.scheduling.core.buckets.fixed_shapes


_PAUSE_S = 2.0  # before another try
logger = logging.getLogger("headrace.anchor")


class GroupReplicas:
    """The replicas of one group. Only a replica that Serve lists is asked, by its id: a call to no
    particular replica would wait at Serve, and Serve starts a replica for any call that waits.

    `handle`: of the group's Serve deployment; `directory`: kept by the handle's router, perhaps
    on another thread."""

    def __init__(self, handle: Any, directory: ReplicaDirectory) -> None:
        self._handle = handle.options(method_name="describe")  # starts the router
        self._directory = directory
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake(replicas: tuple[RunningReplica, ...]) -> None:
            loop.call_soon_threadsafe(self._changed.set)

        self.stop = directory.listen(wake)

    async def describe(self, digest: str) -> tuple[ModelDescription, bytes]:
        """The description and tokeniser from a replica with these settings, once there is one.
        Raises what Serve raises if the replica has gone meanwhile."""
        found: tuple[bytes, bytes] = await (await self._pinned(digest)).remote()
        return DESCRIPTION.decode(found[0]), found[1]

    async def version(self, digest: str, views: list[dict[str, Any]]) -> str:
        """The model's version over the settings of all its groups (`views`)."""
        pinned = (await self._pinned(digest)).options(method_name="version")
        found: str = await pinned.remote(views)
        return found

    async def _pinned(self, digest: str) -> Any:
        """A handle that is pinned to a replica with these settings; waits for one."""
        while True:
            self._changed.clear()
            for replica in self._directory.replicas:
                if replica.digest() == digest:
                    return self._handle.options(session_id=replica.replica_id)
            await self._changed.wait()


@dataclass(frozen=True, slots=True)
class _Group:
    """One group of the model."""

    name: str
    written: dict[str, Any]  # the settings that its replicas are started with
    after_s: float  # see `GroupDescription`
    max_length: int | None  # of a row, where the group's own settings say it
    replicas: GroupReplicas

    @property
    def digest(self) -> str:
        return settings_digest(self.written)


class DescribedGroups:
    """The model's description so far.

    `args`: the application's, see `serve_config`. `replicas`: of each group in the order of
    `args["groups"]`, or one entry for a model without groups. `changed` is set when a group has
    been described; `recalled` once stored descriptions have been looked for.
    """

    def __init__(self, args: dict[str, Any], replicas: Sequence[GroupReplicas]) -> None:
        self._model: str = args["name"]
        self._settings: dict[str, Any] = args["settings"]
        groups = args.get("groups") or [{"name": "", "settings": args["settings"], "after_s": 0.0}]
        self._groups = [
            _Group(
                group["name"], group["settings"], group["after_s"], group.get("max_length"), asked
            )
            for group, asked in zip(groups, replicas, strict=True)
        ]
        self._lengths = GroupLengths.of(
            LengthSettings.model_validate(self._settings.get("lengths") or {}),
            {group.name: group.max_length for group in self._groups},
        )
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
        description, refused = combined(self._parts, after_s, self._lengths)
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
                return await asyncio.to_thread(
                    description_store.get, self._model, group.name, settings
                )
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
        await asyncio.to_thread(description_store.put, self._model, group.name, said)

    def _take(self, group: _Group, said: StoredDescription) -> None:
        self._version = said.version or self._version
        self._tokenizer = said.tokenizer or self._tokenizer
        if self._parts.get(group.name) != said.description:
            self._parts[group.name] = said.description
            self.changed.set()
            self._any_described.set()
