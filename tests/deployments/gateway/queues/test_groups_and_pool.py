"""How a gateway follows the replicas of groups, and those that the shared pool lends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_engines import until
from followed_registry import Following

from deployments.contract.app_names import POOL_DIRECTORY, directory_key
from deployments.contract.description import (
    Generating,
    GroupDescription,
    ModelDescription,
)
from deployments.contract.registry import PoolMember
from deployments.gateway.queues.pool_replicas import as_replica
from deployments.process.replica_directory import RunningReplica, directory_for
from deployments.replica.scheduling import scheduling
from deployments.settings.model import ModelSettings

Describe = Callable[..., ModelDescription]


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


def member(replica: str, **more: Any) -> PoolMember:
    fields = {"digest": "d", "version": "1", "channel": "h:1", "slots": 3, "after_s": 0.02}
    return PoolMember("device", f"{replica}.1", replica, **{**fields, **more})


def test_a_pool_member_speaks_what_it_says_that_it_does() -> None:
    assert as_replica(member("p")).spoken_versions() == {3}
    assert as_replica(member("p", channel_versions="4,3")).spoken_versions() == {4, 3}


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


async def test_an_engine_in_the_pool_is_one_more_of_the_models_engines(
    following: Following, description: Describe
) -> None:
    measured = Generating(100, 400, 8, profile=((1, 1, 0.02),))
    settings = ModelSettings(runtime="synthetic", task="generate")
    described = description(generating=measured, scheduling=scheduling(settings))
    following.run(described)
    pool_runs("p")
    await following.registry.tell(described, pool={"device": (member("p"),)})
    model = following.catalogue.find("device")
    await until(lambda: sorted(model.queue.calls.reached) == ["device-0", "p.1"])
    reserve = model.queue._settings.groups[-1]
    assert (reserve.name, reserve.engine_profile) == ("pool", measured.profile)
    directory_for(directory_key("device")).update([])
    assert model.queue.calls.reached == ["p.1"]
    (own,) = model.queue.snapshot().replicas
    assert (own.group, own.capacity) == ("pool", 400.0)
    assert following.catalogue.ready("device")


async def test_of_a_model_with_groups_an_engine_in_the_pool_holds_what_its_group_does(
    following: Following, description: Describe
) -> None:
    large, small = Generating(100, 4000, 64), Generating(100, 400, 2, profile=((1, 1, 0.5),))
    groups = (
        replace(a_group("gpu"), generating=large), replace(a_group("cpu"), generating=small),
    )  # fmt: skip
    pool_runs("p")
    held = {"device": (member("p", digest="d-cpu", version="of the group alone"),)}
    await following.registry.tell(description(generating=large, groups=groups), pool=held)
    model = following.catalogue.find("device")
    await until(lambda: "p.1" in model.queue.calls.reached)
    assert model.queue._settings.groups[-1].engine_profile == small.profile
    assert model.queue._shapes["pool"] == small
