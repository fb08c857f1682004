"""Several groups: one description of all, who is left out, and how replicas describe them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from deployments.contract.app_names import directory_key, is_model_deployment, model_deployment
from deployments.contract.description import (
    DESCRIPTION,
    GatewayIdentity,
    Generating,
    ModelDescription,
    ReuseSettings,
    dispatcher_settings,
)
from deployments.process import description_store
from deployments.process.description_store import StoredDescription
from deployments.process.replica_directory import (
    JoinedDirectories,
    ReplicaDirectory,
    RunningReplica,
)
from deployments.replica import groups as group_module
from deployments.replica.anchor import GroupReplicas
from deployments.replica.groups import DescribedGroups, GroupLengths, combined, version_of
from deployments.settings.plain import settings_digest
from routers.api.settings import validate
from runtimes.types import TensorSpec

Describe = Callable[..., ModelDescription]
GPU_POINTS, CPU_POINTS = ((1, 8, 0.002),), ((1, 8, 0.03),)


@pytest.fixture
def parts(description: Describe) -> Callable[..., dict[str, ModelDescription]]:
    def make(**of_cpu: Any) -> dict[str, ModelDescription]:
        gpu = description(digest="dg", profile=GPU_POINTS, max_rows=16, device="gpu")
        cpu = description(digest="dc", profile=CPU_POINTS, max_rows=4)
        return {"gpu": gpu, "cpu": replace(cpu, **of_cpu)}

    return make


def fixed(part: ModelDescription, edges: tuple[int, ...]) -> ModelDescription:
    buckets = replace(part.scheduling.core.buckets, fixed_shapes=True, switch_s=0.01)
    core = replace(part.scheduling.core, buckets=buckets)
    return replace(part, bucket_edges=edges, scheduling=replace(part.scheduling, core=core))


def test_each_group_keeps_its_own_costs_and_bounds_and_reaches_the_core_in_order(parts) -> None:
    found, refused = combined(parts(), {"gpu": 0.0, "cpu": 0.25})
    core = dispatcher_settings(found, GatewayIdentity("g"))
    assert refused == {}
    assert [(g.name, g.profile, g.max_size, g.after_s) for g in core.groups] == [
        ("gpu", GPU_POINTS, 16, 0.0), ("cpu", CPU_POINTS, 4, 0.25),
    ]  # fmt: skip
    assert core.max_size == 16
    assert found.group_digests() == {"gpu": "dg", "cpu": "dc"}


def test_the_order_is_the_settings_whoever_came_first(parts) -> None:
    gpu, cpu = parts().values()
    found, _ = combined({"cpu": cpu, "gpu": gpu}, {"gpu": 0.0, "cpu": 0.0})
    assert [group.name for group in found.groups] == ["gpu", "cpu"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"outputs": (TensorSpec("sum", "FP16", (-1,)),)}, "its outputs differ"),
        ({"tokenizer_digest": "other", "pads": False}, "its tokenizer_digest and pads differ"),
        ({"generating": Generating(8, 100, 4)}, "it generates, or the others do"),
    ],
)
def test_a_group_whose_answers_could_not_stand_for_the_others_is_left_out(
    parts, change, said
) -> None:
    found, refused = combined(parts(**change), {"gpu": 0.0, "cpu": 0.0})
    assert [group.name for group in found.groups] == ["gpu"]
    assert said in refused["cpu"]


def test_edges_that_a_compiled_backend_fixes_hold_for_all(parts) -> None:
    both = parts()
    both["cpu"] = fixed(both["cpu"], (2, 8))
    found, refused = combined(both, {"gpu": 0.0, "cpu": 0.0})
    assert (found.bucket_edges, refused) == ((2, 8), {})
    assert found.scheduling.core.buckets.fixed_shapes
    both["gpu"] = fixed(both["gpu"], (3, 8))
    found, refused = combined(both, {"gpu": 0.0, "cpu": 0.0})
    assert found.bucket_edges == (3, 8)
    assert refused == {"cpu": "it is compiled for the lengths (2, 8), another group for (3, 8)"}


def test_the_longest_row_is_the_one_that_every_group_takes(parts) -> None:
    found, _ = combined(parts(max_length=6, bucket_edges=(4, 6)), {"gpu": 0.0, "cpu": 0.0})
    assert (found.max_length, found.bucket_edges) == (6, (4, 6))


def lengths(edges: tuple[int, ...] = (4, 8), **longest: int) -> GroupLengths:
    return GroupLengths(edges, longest)


def test_a_bound_in_a_groups_settings_is_its_own_and_an_edge_of_buckets(parts) -> None:
    made = parts(max_length=6, bucket_edges=(4, 6))
    found, refused = combined(made, {"gpu": 0.0, "cpu": 0.0}, lengths(cpu=6))
    assert (refused, found.max_length) == ({}, made["gpu"].max_length)
    assert found.bucket_edges == tuple(sorted({*made["gpu"].bucket_edges, 6}))
    assert [(g.name, g.max_length) for g in found.groups] == [("gpu", None), ("cpu", 6)]
    core = dispatcher_settings(found, GatewayIdentity("g"))
    validate(core)
    assert [group.max_length for group in core.groups] == [None, 6]
    assert found.main_group is not None
    assert found.main_group.name == "gpu"


def test_the_model_takes_its_own_longest_row_while_only_a_bounded_group_is_described(parts) -> None:
    made = parts(max_length=6, bucket_edges=(4, 6))
    found, _ = combined({"cpu": made["cpu"]}, {"gpu": 0.0, "cpu": 0.0}, lengths(cpu=6))
    assert (found.max_length, found.bucket_edges) == (8, (4, 6, 8))
    validate(dispatcher_settings(found, GatewayIdentity("g")))


def test_compiled_edges_go_together_as_far_as_both_groups_reach(parts) -> None:
    both = parts(max_length=4)
    both = {"gpu": fixed(both["gpu"], (2, 4, 8)), "cpu": fixed(both["cpu"], (2, 4))}
    found, refused = combined(both, {"gpu": 0.0, "cpu": 0.0}, lengths(cpu=4))
    assert (refused, found.bucket_edges) == ({}, (2, 4, 8))
    both["cpu"] = fixed(both["cpu"], (3, 4))
    _, refused = combined(both, {"gpu": 0.0, "cpu": 0.0}, lengths(cpu=4))
    assert set(refused) == {"cpu"}


def test_where_rows_of_one_group_depend_no_answer_is_cached(parts) -> None:
    made = parts(rows_depend=True)
    kept = {n: replace(d, reuse=ReuseSettings(1000, 1.0, coalesce=True)) for n, d in made.items()}
    for order in (("gpu", "cpu"), ("cpu", "gpu")):
        found, _ = combined({name: kept[name] for name in order}, {"gpu": 0.0, "cpu": 0.0})
        assert found.rows_depend
        assert (found.reuse.cache_bytes, found.reuse.coalesce) == (0, False)


def test_engines_share_the_shortest_context_and_blocks_only_if_cut_alike(parts) -> None:
    both = parts(generating=Generating(6, 100, 4, 2, ((1, 1, 0.5),)))
    both["gpu"] = replace(both["gpu"], generating=Generating(8, 900, 64, 2, ((1, 1, 0.1),)))
    found, _ = combined(both, {"gpu": 0.0, "cpu": 0.0})
    assert found.generating is not None
    assert (found.generating.context_tokens, found.generating.block_tokens) == (6, 2)
    core = dispatcher_settings(found, GatewayIdentity("g"))
    assert [group.engine_profile for group in core.groups] == [((1, 1, 0.1),), ((1, 1, 0.5),)]
    other = replace(both["cpu"], generating=Generating(6, 100, 4, 16))
    found, _ = combined(both | {"cpu": other}, {"gpu": 0.0, "cpu": 0.0})
    assert found.generating is not None
    assert found.generating.block_tokens == 0


def test_a_models_version_is_that_of_its_groups_together() -> None:
    assert version_of(["a", "a"]) == "a"
    assert version_of(["a", "b"]) != version_of(["b", "a"])
    assert len(version_of(["a", "b"])) == 12


def test_a_group_has_a_deployment_and_a_directory_of_its_own() -> None:
    assert [model_deployment(), model_deployment("gpu")] == ["model", "model-gpu"]
    assert is_model_deployment("model-gpu")
    assert not is_model_deployment("anchor")
    assert directory_key("m", "gpu") == "model-m/model-gpu"


def test_joined_directories_tell_of_every_change_in_any_of_them() -> None:
    one, other, joined = ReplicaDirectory(), ReplicaDirectory(), JoinedDirectories()
    heard: list[list[str]] = []
    one.update([RunningReplica("a")])
    joined.add(one)
    stop = joined.listen(lambda replicas: heard.append([each.replica_id for each in replicas]))
    joined.add(other)
    joined.add(other)
    other.update([RunningReplica("b")])
    one.drop("a")
    stop()
    other.update([])
    assert heard == [["a"], ["a"], ["a", "b"], ["b"]]


SETTINGS: dict[str, Any] = {"runtime": "synthetic"}


class Replicas:
    """Each `describe` is answered with the next of `answers`, once there is one. `asked`: for which
    settings' version."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.asked: list[Any] = []
        self.digests: list[str] = []

    async def describe(self, digest: str) -> Any:
        self.digests.append(digest)
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def version(self, digest: str, views: Any) -> str:
        self.asked.append(views)
        return "v-of-all"

    def stop(self) -> None:
        pass


class Store:
    """As `description_store`, with what it encodes."""

    away = False

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], bytes] = {}

    def put(self, model: str, group: str, stored: StoredDescription) -> None:
        self.kept[model, group] = description_store.STORED.encode(stored)

    def get(self, model: str, group: str, settings: str) -> StoredDescription | None:
        if self.away:
            raise RuntimeError("the store is away")
        found = self.kept.get((model, group))
        return None if found is None else description_store.decode(found, settings)


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """What `DescribedGroups` find in place of `description_store`; they try again at once."""
    made = Store()
    monkeypatch.setattr(group_module, "description_store", made)
    monkeypatch.setattr(group_module, "_PAUSE_S", 0.0)
    return made


def group(name: str, after_s: float = 0.0) -> dict[str, Any]:
    return {"name": name, "settings": SETTINGS | {"options": {"name": name}}, "after_s": after_s}


GPU, CPU = group("gpu"), group("cpu", 0.5)
ARGS = {"name": "m", "settings": SETTINGS, "channel": {}, "groups": [GPU, CPU]}


def said(description: Describe, of: dict[str, Any], **more: Any) -> tuple[ModelDescription, bytes]:
    return description(digest=settings_digest(of["settings"]), **more), b""


async def until(held: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not held():  # noqa: ASYNC110 - a thread of the store's
            await asyncio.sleep(0.001)


ALONE = {"name": "m", "settings": SETTINGS, "channel": {}}


async def test_a_model_without_groups_is_what_its_replica_says(description: Describe) -> None:
    asked = Replicas()
    groups = DescribedGroups(ALONE, [asked])
    groups.start()
    assert not groups.known
    own = description(digest=settings_digest(SETTINGS)), b"words"
    asked.answers.put_nowait(own)
    await groups.changed.wait()
    assert groups.current() == own
    assert groups.known
    assert (asked.asked, asked.digests) == ([], [settings_digest(SETTINGS)])


async def test_what_was_said_once_is_known_without_a_replica(
    store: Store, description: Describe
) -> None:
    first = Replicas()
    groups = DescribedGroups(ALONE, [first])
    groups.start()
    own = description(digest=settings_digest(SETTINGS)), b"words"
    first.answers.put_nowait(own)
    await until(lambda: bool(store.kept))
    asleep = Replicas()
    later = DescribedGroups(ALONE, [asleep])
    later.start()
    async with asyncio.timeout(5.0):
        await later.wait_known(5.0)
    assert later.current() == own
    assert asleep.answers.empty()


async def test_what_a_replica_says_later_takes_the_place_of_what_was_stored(
    store: Store, description: Describe
) -> None:
    digest, asked = settings_digest(SETTINGS), Replicas()
    groups = DescribedGroups(ALONE, [asked])
    before = StoredDescription(groups._all_settings(), description(digest=digest), b"words")
    store.put("m", "", before)
    groups.start()
    await until(lambda: groups.known)
    groups.changed.clear()
    await until(lambda: bool(asked.digests))
    asked.answers.put_nowait((description(digest=digest, version="2"), b"words"))
    await groups.changed.wait()
    assert groups.current()[0].version == "2"
    await until(lambda: store.get("m", "", before.settings) != before)


async def test_other_settings_are_another_model(store: Store, description: Describe) -> None:
    store.put("m", "", StoredDescription("of others", description(), b""))
    groups = DescribedGroups(ALONE, [Replicas()])
    groups.start()
    await groups.recalled.wait()
    assert not groups.known


async def test_a_store_that_is_away_holds_up_nothing(store: Store, description: Describe) -> None:
    asked, store.away = Replicas(), True
    groups = DescribedGroups(ALONE, [asked])
    groups.start()
    asked.answers.put_nowait((description(digest=settings_digest(SETTINGS)), b""))
    await groups.changed.wait()
    assert groups.known
    assert not groups.recalled.is_set()  # that nothing was stored is not known
    store.away = False
    async with asyncio.timeout(5.0):
        await groups.recalled.wait()
    groups.stop()


async def test_sleeping_groups_are_known_with_the_version_of_all(
    store: Store, description: Describe
) -> None:
    asked = [Replicas(), Replicas()]
    groups = DescribedGroups(ARGS, asked)
    groups.start()
    asked[0].answers.put_nowait(said(description, GPU))
    asked[1].answers.put_nowait(said(description, CPU))
    await until(lambda: len(store.kept) == 2)
    later = DescribedGroups(ARGS, [Replicas(), Replicas()])
    later.start()
    await until(lambda: len(later._parts) == 2)
    assert later.current() == groups.current()
    changed = ARGS | {"groups": [GPU, group("cpu", 0.7) | {"settings": {"runtime": "other"}}]}
    other = DescribedGroups(changed, [Replicas(), Replicas()])
    other.start()
    await other.recalled.wait()
    assert not other.known


async def test_a_group_that_comes_up_later_joins_the_others(description: Describe) -> None:
    gpu, cpu = Replicas(), Replicas()
    groups = DescribedGroups(ARGS, [gpu, cpu])
    groups.start()
    cpu.answers.put_nowait(said(description, CPU))
    await groups.changed.wait()
    groups.changed.clear()
    first, _ = groups.current()
    gpu.answers.put_nowait(said(description, GPU))
    await groups.changed.wait()
    both, _ = groups.current()
    assert [each.name for each in first.groups] == ["cpu"]
    assert [(each.name, each.after_s) for each in both.groups] == [("gpu", 0.0), ("cpu", 0.5)]
    assert (first.version, first.digest) == (both.version, both.digest)
    assert first.version == "v-of-all"
    assert cpu.asked == [[GPU["settings"], CPU["settings"]]]


async def test_a_replica_that_cannot_be_asked_is_asked_again(description: Describe) -> None:
    gpu = Replicas()
    groups = DescribedGroups(ARGS | {"groups": [GPU]}, [gpu])
    groups.start()
    gpu.answers.put_nowait(RuntimeError("it went"))
    gpu.answers.put_nowait(said(description, GPU))
    await groups.changed.wait()
    assert [each.name for each in groups.current()[0].groups] == ["gpu"]


async def test_a_group_that_does_not_fit_is_left_out_and_the_log_says_so_once(
    description: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        group_module.logger, "error", lambda text, *of, extra: told.append(text % of)
    )
    handles = [Replicas(), Replicas()]
    groups = DescribedGroups(ARGS, handles)
    groups.start()
    handles[0].answers.put_nowait(said(description, GPU))
    await groups.changed.wait()
    other = (TensorSpec("other", "FP32", (-1,)),)
    handles[1].answers.put_nowait(said(description, CPU, outputs=other))
    await until(lambda: len(groups._parts) == 2)
    for _ in range(2):
        assert [each.name for each in groups.current()[0].groups] == ["gpu"]
    assert told == ["group cpu gets no requests: its outputs differ from the other groups'"]


@dataclass(frozen=True)
class Handle:
    """Answers with what was asked of whom, and keeps it in `asked`."""

    asked: list[Any] = field(default_factory=list)
    method_name: str = ""
    session_id: str = ""

    def options(self, **changes: str) -> Handle:
        return replace(self, **changes)

    async def remote(self, *args: Any) -> Any:
        self.asked.append((self.method_name, self.session_id, *args))
        return self.asked[-1]


def a_replica(name: str, digest: str) -> RunningReplica:
    return RunningReplica(name, (("digest", digest),))


@dataclass(frozen=True)
class Describing(Handle):
    """Answers with a description in which it says what was asked of whom."""

    make: Callable[..., ModelDescription] = ModelDescription

    async def remote(self, *args: Any) -> Any:
        method, replica = await super().remote(*args)
        return DESCRIPTION.encode(self.make(name=method, digest=replica)), b"tokens"


async def test_nobody_is_asked_before_one_of_these_settings_is_listed(
    description: Callable[..., ModelDescription],
) -> None:
    handle, directory = Describing(make=description), ReplicaDirectory()
    group = GroupReplicas(handle, directory)
    asking = asyncio.create_task(group.describe("d"))
    directory.update([a_replica("old", "the one before")])
    for _ in range(10):
        await asyncio.sleep(0)
    assert handle.asked == []
    directory.update([a_replica("old", "the one before"), a_replica("new", "d")])
    assert await asking == (description(name="describe", digest="new"), b"tokens")
    group.stop()


async def test_a_listing_that_another_thread_brings_is_heard_of() -> None:
    handle, directory = Handle(), ReplicaDirectory()
    group = GroupReplicas(handle, directory)
    asking = asyncio.create_task(group.version("d", [{"runtime": "x"}]))
    await asyncio.sleep(0)
    await asyncio.to_thread(directory.update, [a_replica("r", "d")])
    async with asyncio.timeout(5.0):
        assert await asking == ("version", "r", [{"runtime": "x"}])
    group.stop()
