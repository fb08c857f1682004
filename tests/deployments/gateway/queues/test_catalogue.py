"""How a gateway follows the registry: models come, change and go, and a registry that starts anew
or is away takes nothing from anybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fake_engines import Engines, until

from deployments.contract import errors
from deployments.contract.app_names import POOL_DIRECTORY, directory_key
from deployments.contract.description import (
    GatewayIdentity,
    Generating,
    GroupDescription,
    ModelDescription,
)
from deployments.contract.pool import PoolMember
from deployments.contract.registry import View
from deployments.contract.replica_directory import RunningReplica, directory_for
from deployments.contract.scaling.messages import ModelOutlook
from deployments.gateway.queues import catalogue
from deployments.gateway.queues.catalogue import Catalogue

Describe = Callable[..., ModelDescription]


class FakeRegistry:
    """`tell(view)` ends a watch with it; an exception is raised there."""

    def __init__(self) -> None:
        self._told: asyncio.Queue[View | Exception] = asyncio.Queue()
        self.heard = 0
        self.watch = self.blob = self
        self._revision = 0

    async def remote(self, revision: int, timeout_s: float) -> View:
        told = await self._told.get()
        self.heard += 1
        if isinstance(told, Exception):
            raise told
        return told

    async def tell(self, *descriptions: ModelDescription, declared: str = "", **more: Any) -> None:
        self._revision += 1
        names = frozenset(declared.split()) | {description.name for description in descriptions}
        models = {description.name: description for description in descriptions}
        view = View(self._revision, models, names, more.pop("draining", False), **more)
        await self.tell_raw(view)

    async def tell_raw(self, told: View | Exception) -> None:
        self._told.put_nowait(told)
        for _ in range(10):
            await asyncio.sleep(0)


class HeldUp(Engines):
    """A channel whose `seed` waits for `ready`, as if no replica ran before."""

    def __init__(self, ready: asyncio.Event) -> None:
        super().__init__()
        self._ready = ready
        self.seeded: list[str] = []

    async def seed(self, groups: Sequence[str]) -> None:
        self.seeded += groups
        await self._ready.wait()


class Following:
    """A catalogue that follows a fake registry; `seeds[application]` holds a model up. `channels`:
    what was asked for: application, gateway and whether its replicas speak. `followed_pool`: how
    often the pool's replicas were asked for."""

    def __init__(self) -> None:
        self.registry = FakeRegistry()
        self.seeds: dict[str, asyncio.Event] = {}
        self.channels: list[tuple[str, str, bool]] = []
        self.followed_pool = 0
        self.catalogue = Catalogue(
            self.registry,
            GatewayIdentity("g"),
            1 << 16,
            lambda *_: None,
            self._connect,
            self._follow_pool,
        )

    def _connect(self, app: str, gateway: str, *, speaks: bool) -> Engines:
        self.channels.append((app, gateway, speaks))
        open_at_once = asyncio.Event()
        open_at_once.set()
        return HeldUp(self.seeds.get(app, open_at_once))

    def _follow_pool(self) -> None:
        self.followed_pool += 1

    def run(self, description: ModelDescription) -> None:
        metadata = (("digest", description.digest),)
        directory_for(directory_key(description.name)).update(
            [RunningReplica(f"{description.name}-0", metadata)]
        )


@pytest.fixture
async def following(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Following]:
    monkeypatch.setattr("deployments.contract.replica_directory._DIRECTORIES", {})
    monkeypatch.setattr("deployments.gateway.queues.catalogue._PAUSE_S", 0.0)
    found = Following()
    task = asyncio.create_task(found.catalogue.follow())
    yield found
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_announced_model_is_found_and_ready_once_a_replica_runs(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description())
    assert following.catalogue.find("device").description == description()
    assert following.catalogue.ready("device")
    assert following.catalogue.all_ready


async def test_a_declared_model_is_503_and_an_undeclared_one_404(following: Following) -> None:
    await following.registry.tell(declared="device")
    with pytest.raises(errors.NotReady):
        following.catalogue.find("device")
    with pytest.raises(errors.NotFound):
        following.catalogue.find("other")
    assert not following.catalogue.all_ready
    assert following.catalogue.waiting_for == ["device"]


async def test_an_unknown_model_is_503_until_all_models_are_known(following: Following) -> None:
    with pytest.raises(errors.NotReady):
        following.catalogue.find("other")
    await following.registry.tell(declared="device", complete=False)
    with pytest.raises(errors.NotReady):
        following.catalogue.find("other")
    await following.registry.tell(declared="device")
    with pytest.raises(errors.NotFound):
        following.catalogue.find("other")
    await following.registry.tell(declared="device", complete=False)  # the registry restarted
    with pytest.raises(errors.NotFound):
        following.catalogue.find("other")


async def test_readiness_waits_for_all_models_and_not_for_those_first_heard_of(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description(), complete=False)
    assert not following.catalogue.all_ready
    await following.registry.tell(description(), declared="device later")
    assert not following.catalogue.all_ready
    following.run(description(name="later"))
    await following.registry.tell(description(), description(name="later"))
    assert following.catalogue.all_ready


async def test_a_model_whose_replicas_cannot_be_reached_is_not_ready(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description())
    channel = following.catalogue.find("device").channel
    channel.kill("device-0")  # type: ignore[attr-defined]
    await until(lambda: not following.catalogue.ready("device"))
    assert following.catalogue.waiting_for == ["device"]
    assert following.catalogue.find("device").replicas == 0  # and requests wait for it


async def test_a_model_that_stays_out_of_reach_is_503_until_a_replica_is_back(
    following: Following, description: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(catalogue.time, "monotonic", lambda: now[0])
    following.run(description())
    await following.registry.tell(description())
    served = following.catalogue.find("device")
    for _ in range(2):  # each time anew
        monkeypatch.setattr(type(served), "replicas", property(lambda self: 0))
        assert following.catalogue.find("device") is served
        now[0] += catalogue._HOLD_S
        with pytest.raises(errors.NotReady):
            following.catalogue.find("device")
        monkeypatch.setattr(type(served), "replicas", property(lambda self: 1))
        assert following.catalogue.find("device") is served


async def test_who_stands_in_is_known_before_a_model_was_ready(
    following: Following, description: Describe
) -> None:
    await following.registry.tell(declared="device", fallbacks={"device": "small"})
    assert following.catalogue.fallback_of("device") == "small"
    assert following.catalogue.fallback_of("other") == ""
    await following.registry.tell(declared="device", complete=False)
    assert following.catalogue.fallback_of("device") == "small"
    following.run(description())
    await following.registry.tell(description(), fallbacks={"device": "small"})
    assert following.catalogue.fallback_of("device") == description().reuse.fallback


async def test_the_switch_reaches_the_models_that_are_there_and_those_to_come(
    following: Following, description: Describe
) -> None:
    def frozen() -> list[bool]:
        return [m.queue._settings.frozen for m in following.catalogue.served.values()]

    following.run(description())
    await following.registry.tell(description())
    following.catalogue.freeze(True)
    following.run(description(name="later"))
    await following.registry.tell(description(), description(name="later"))
    assert frozen() == [True, True]
    following.catalogue.freeze(False)
    assert frozen() == [False, False]


async def test_nothing_is_ready_before_anything_was_declared(following: Following) -> None:
    assert not following.catalogue.all_ready
    await following.registry.tell()
    assert not following.catalogue.all_ready


async def test_a_model_that_does_not_answer_holds_up_no_other(
    following: Following, description: Describe
) -> None:
    following.seeds["model-slow"] = asyncio.Event()
    following.run(description())
    await following.registry.tell(description(name="slow"), description())
    assert following.catalogue.ready("device")
    assert not following.catalogue.ready("slow")
    await following.registry.tell(description(name="slow"), description(), draining=True)
    assert following.catalogue.draining
    following.seeds["model-slow"].set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert following.catalogue.find("slow")


async def test_a_model_that_cannot_be_taken_in_is_tried_again(
    following: Following, description: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, failures = following._connect, [RuntimeError("no route"), RuntimeError("no route")]

    def stumble(*of: Any, **more: Any) -> Engines:
        if failures:
            raise failures.pop()
        return connect(*of, **more)

    monkeypatch.setattr(following.catalogue, "_connect", stumble)
    await following.registry.tell(description())
    await following.registry.tell(description())
    assert following.catalogue.find("device")


async def test_a_new_version_replaces_the_page_and_keeps_the_queue(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description())
    queue = following.catalogue.find("device").queue
    await following.registry.tell(description(version="2", digest="d2", generation=2))
    assert following.catalogue.find("device").description.version == "2"
    assert following.catalogue.find("device").queue is queue
    assert not following.catalogue.ready("device")  # no replica of it runs yet
    following.run(description(version="2", digest="d2"))
    await until(lambda: following.catalogue.ready("device"))
    with pytest.raises(errors.NotFound):
        following.catalogue.find("device", "1")


async def test_a_profile_is_kept_until_another_version_brings_its_own(
    following: Following, description: Describe
) -> None:
    async def told(**changes: Any) -> Any:
        await following.registry.tell(description(**changes))
        return following.catalogue.find("device").queue._settings.profile

    first, second = ((1, 8, 0.1),), ((1, 8, 0.2),)
    assert await told(profile=first) == first
    assert await told(profile=second, generation=2) == first
    assert await told(profile=second, generation=3, version="2") == second


async def test_a_model_that_is_no_longer_declared_is_closed(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description(), description(name="other"))
    await following.registry.tell(description(name="other"))
    assert list(following.catalogue.served) == ["other"]
    with pytest.raises(errors.NotFound):
        following.catalogue.find("device")


async def test_a_model_that_is_awaited_and_then_withdrawn_is_not_waited_for(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description(), declared="broken")
    assert not following.catalogue.all_ready
    await following.registry.tell(description())
    assert following.catalogue.all_ready


async def test_an_optional_model_is_not_waited_for_and_answers_for_itself(
    following: Following, description: Describe, caplog: pytest.LogCaptureFixture
) -> None:
    await following.registry.tell(declared="device extra", optional=frozenset({"extra"}))
    assert not following.catalogue.all_ready
    following.run(description())
    await following.registry.tell(description(), declared="extra", optional=frozenset({"extra"}))
    assert following.catalogue.all_ready
    assert "ready without models that are optional: extra" in caplog.text
    assert following.catalogue.waiting_for == ["extra"]
    with pytest.raises(errors.NotReady, match="extra is declared but not ready yet"):
        following.catalogue.find("extra")
    following.run(description(name="extra"))
    await following.registry.tell(description(), description(name="extra"))
    assert following.catalogue.ready("extra")


async def test_a_model_is_waited_for_until_it_is_known_to_be_optional(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description(), declared="extra")
    assert not following.catalogue.all_ready
    await following.registry.tell(description(), declared="extra", optional=frozenset({"extra"}))
    assert following.catalogue.all_ready


async def test_a_registry_that_starts_anew_forgets_no_optional_model(
    following: Following, description: Describe
) -> None:
    await following.registry.tell(declared="device extra", optional=frozenset({"extra"}))
    await following.registry.tell(declared="device extra", complete=False)
    assert following.catalogue.is_optional("extra")
    await following.registry.tell(declared="device extra")
    assert not following.catalogue.is_optional("extra")


async def test_a_model_between_anchors_keeps_taking_requests_while_its_replicas_run(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description())
    await following.registry.tell(declared="device")
    assert following.catalogue.find("device")
    assert not following.catalogue.ready("device")


async def test_a_registry_that_starts_anew_takes_nothing_away(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description(), draining=True)
    await following.registry.tell(complete=False)
    assert following.catalogue.ready("device")
    assert following.catalogue.draining
    await following.registry.tell(description(version="2"), complete=False)
    assert following.catalogue.find("device").description.version == "2"
    await following.registry.tell(draining=False)
    assert following.catalogue.served == {}


async def test_a_registry_that_fails_is_asked_again(
    following: Following, description: Describe
) -> None:
    await following.registry.tell_raw(RuntimeError("the actor died"))
    await following.registry.tell(description())
    assert following.catalogue.find("device")


async def test_a_superseded_announcement_is_given_up(
    following: Following, description: Describe
) -> None:
    following.seeds["model-device"] = asyncio.Event()
    await following.registry.tell(description(version="1"))
    await following.registry.tell(description(version="2"))
    following.seeds["model-device"].set()
    await following.registry.tell(description(version="2"), draining=True)
    assert following.catalogue.find("device").description.version == "2"
    await following.registry.tell()
    assert following.catalogue.served == {}


async def test_replicas_are_reached_as_what_they_are(
    following: Following, description: Describe
) -> None:
    chat = description(name="chat", task="generate", generating=Generating(8, 64, 4))
    following.run(chat)
    await following.registry.tell(chat, description())
    assert sorted(following.channels) == [("model-chat", "g", True), ("model-device", "g", False)]
    assert following.catalogue.find("chat").streams.waiting_rows == 0


async def test_a_model_that_begins_to_generate_has_a_queue_of_the_other_kind(
    following: Following, description: Describe
) -> None:
    following.run(description())
    await following.registry.tell(description())
    assert following.catalogue.find("device").batches.waiting_rows == 0
    other = description(version="2", task="generate", generating=Generating(8, 64, 4))
    await following.registry.tell(other)
    served = following.catalogue.find("device")
    assert served.streams.waiting_rows == 0
    with pytest.raises(errors.BadRequest):
        _ = served.batches
    await following.registry.tell(description(version="3"))
    assert following.catalogue.find("device").batches.waiting_rows == 0


# ---- groups ------------------------------------------------------------------------------------


def a_group(name: str) -> GroupDescription:
    return GroupDescription(name, f"d-{name}", "synthetic", "fp32", "cpu", slots=2, max_size=8)


def runs(model: str, group: str) -> None:
    metadata = (("digest", f"d-{group}"), ("group", group))
    directory_for(directory_key(model, group)).update(
        [RunningReplica(f"{model}-{group}-0", metadata)]
    )


async def test_replicas_of_every_group_are_reached_those_that_come_up_later_too(
    following: Following, description: Describe
) -> None:
    runs("device", "gpu")
    await following.registry.tell(description(groups=(a_group("gpu"),)))
    model = following.catalogue.find("device")
    assert model.queue.calls.reached == ["device-gpu-0"]
    runs("device", "cpu")
    assert model.queue.calls.reached == ["device-gpu-0"]
    await following.registry.tell(description(groups=(a_group("gpu"), a_group("cpu"))))
    await until(lambda: len(model.queue.calls.reached) == 2)
    assert following.catalogue.find("device") is model
    assert model.channel.seeded == ["gpu", "gpu", "cpu"]  # type: ignore[attr-defined]
    assert {each.group for each in model.queue.snapshot().replicas} == {"gpu", "cpu"}


# ---- asleep ------------------------------------------------------------------------------------


async def test_a_sleeping_model_is_ready_and_takes_requests_for_good(
    following: Following, description: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(catalogue.time, "monotonic", lambda: now[0])
    models = following.catalogue
    await following.registry.tell(description())
    assert not models.all_ready
    models.take_outlooks({"device": ModelOutlook(asleep_ok=True, wakes=True)}, 0.0)
    assert models.ready("device")
    assert models.asleep("device")
    assert models.all_ready
    assert models.waiting_for == []
    assert models.find("device")
    now[0] += 10 * catalogue._HOLD_S
    assert models.find("device")
    following.run(description())
    await until(lambda: not models.asleep("device"))
    assert models.ready("device")


@pytest.mark.parametrize(
    ("asleep_ok", "runs", "age_s", "expected_s"),
    [
        (True, False, 0.0, 12.0),
        (True, False, 5.0, 7.0),
        (True, False, 13.0, 0.0),
        (True, True, 0.0, 0.0),  # a connection that breaks may be back at once
        (False, False, 0.0, 0.0),
    ],
)
async def test_only_a_sleeping_models_queue_is_told_when_to_expect_a_replica(
    following: Following,
    description: Describe,
    asleep_ok: bool,
    runs: bool,
    age_s: float,
    expected_s: float,
) -> None:
    if runs:
        following.run(description())
    await following.registry.tell(description())
    outlook = ModelOutlook(asleep_ok=asleep_ok, ready_in_s=12.0)
    following.catalogue.take_outlooks({"device": outlook}, age_s)
    core = following.catalogue.served["device"].queue._dispatcher
    assert core._requests._pipeline.capacity_in_s == expected_s


async def test_a_model_that_is_withdrawn_does_not_count_as_asleep(
    following: Following, description: Describe
) -> None:
    models = following.catalogue
    await following.registry.tell(description())
    models.take_outlooks({"device": ModelOutlook(asleep_ok=True)}, 0.0)
    await following.registry.tell(declared="device")
    assert not models.ready("device")
    assert models.waiting_for == ["device"]


async def test_a_model_that_must_run_is_not_ready_without_replicas(
    following: Following, description: Describe
) -> None:
    models = following.catalogue
    await following.registry.tell(description())
    models.take_outlooks({"device": ModelOutlook(asleep_ok=False)}, 0.0)
    assert not models.ready("device")
    assert not models.all_ready


@pytest.mark.parametrize(
    ("ready_in_s", "told_s"), [(0.0, 2.0), (2.0, 2.0), (13.5, 13.5), (500.0, 60.0)]
)
async def test_who_finds_a_model_not_ready_is_told_when_it_may_be(
    following: Following, ready_in_s: float, told_s: float
) -> None:
    await following.registry.tell(declared="device")
    following.catalogue.take_outlooks({"device": ModelOutlook(ready_in_s=ready_in_s)}, 0.0)
    with pytest.raises(errors.NotReady) as refused:
        following.catalogue.find("device")
    assert refused.value.retry_after_s == told_s


def member(replica: str, **more: Any) -> PoolMember:
    fields = {"digest": "d", "version": "1", "channel": "h:1", "slots": 3, "after_s": 0.02}
    return PoolMember("device", f"{replica}.1", replica, **{**fields, **more})


def pool_runs(*replicas: str) -> None:
    directory_for(POOL_DIRECTORY).update([RunningReplica(uid) for uid in replicas])


async def test_pool_members_are_replicas_of_a_reserve_group_while_their_process_runs(
    following: Following, description: Describe
) -> None:
    following.run(description())
    tell, members = following.registry.tell, {"device": (member("p"), member("q"))}
    await tell(description())
    assert following.followed_pool == 0
    model = following.catalogue.find("device")
    assert [group.name for group in model.queue.snapshot().groups] == [""]
    await tell(description(), pool=members)
    assert following.followed_pool == 1
    assert model.queue.calls.reached == ["device-0"]
    pool_runs("p", "q")
    await until(lambda: sorted(model.queue.calls.reached) == ["device-0", "p.1", "q.1"])
    groups = {each.replica_id: each.group for each in model.queue.snapshot().replicas}
    assert groups == {"device-0": "", "p.1": "pool", "q.1": "pool"}
    reserve = model.queue._settings.groups[-1]
    assert (reserve.name, reserve.after_s) == ("pool", 0.02)
    pool_runs("q")  # p was killed: Serve says so before its lease ends
    assert sorted(model.queue.calls.reached) == ["device-0", "q.1"]
    await tell(description())
    assert model.queue.calls.reached == ["device-0"]
    assert following.followed_pool == 1


async def test_a_model_runs_on_the_pool_alone_while_its_own_replica_is_away(
    following: Following, description: Describe
) -> None:
    following.run(description())
    pool_runs("p")
    await following.registry.tell(description(), pool={"device": (member("p"),)})
    model = following.catalogue.find("device")
    await until(lambda: len(model.queue.calls.reached) == 2)
    directory_for(directory_key("device")).update([])
    assert model.queue.calls.reached == ["p.1"]
    assert following.catalogue.ready("device")


@pytest.mark.parametrize("other", [{"digest": "old"}, {"version": "0"}])
async def test_a_pool_member_of_another_version_gets_no_work(
    following: Following, description: Describe, other: dict[str, str]
) -> None:
    following.run(description())
    pool_runs("p")
    await following.registry.tell(description(), pool={"device": (member("p", **other),)})
    model = following.catalogue.find("device")
    await until(lambda: model.queue.calls.reached == ["device-0"])
    assert model.queue._settings.groups == ()


async def test_pool_members_stay_while_a_registry_that_restarted_gathers(
    following: Following, description: Describe
) -> None:
    following.run(description())
    pool_runs("p")
    await following.registry.tell(description(), pool={"device": (member("p"),)})
    model = following.catalogue.find("device")
    await until(lambda: len(model.queue.calls.reached) == 2)
    await following.registry.tell(description(), complete=False)
    assert sorted(model.queue.calls.reached) == ["device-0", "p.1"]
    await following.registry.tell(description())
    assert model.queue.calls.reached == ["device-0"]


async def test_of_a_model_with_groups_the_pool_starts_from_the_costs_of_the_one_that_it_runs(
    following: Following, description: Describe
) -> None:
    gpu, cpu = a_group("gpu"), replace(a_group("cpu"), profile=((1, 4, 0.5),))
    runs("device", "gpu")
    pool_runs("p")
    held = {"device": (member("p", digest="d-cpu", version="of the group alone"),)}
    await following.registry.tell(description(groups=(gpu, cpu)), pool=held)
    model = following.catalogue.find("device")
    await until(lambda: "p.1" in model.queue.calls.reached)
    assert [group.name for group in model.queue._settings.groups] == ["gpu", "cpu", "pool"]
    assert model.queue._settings.groups[-1].profile == ((1, 4, 0.5),)
