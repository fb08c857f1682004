"""One description of several groups: what they share, what each keeps, who is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from deployments.contract.app_names import directory_key, is_model_deployment, model_deployment
from deployments.contract.description import (
    GatewayIdentity,
    Generating,
    ModelDescription,
    dispatcher_settings,
)
from deployments.process.replica_directory import (
    JoinedDirectories,
    ReplicaDirectory,
    RunningReplica,
)
from deployments.replica.groups import combined, version_of
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


def test_a_group_that_nobody_has_described_is_not_there_yet(parts) -> None:
    found, _ = combined({"cpu": parts()["cpu"]}, {"gpu": 0.0, "cpu": 0.25})
    assert [group.name for group in found.groups] == ["cpu"]


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
