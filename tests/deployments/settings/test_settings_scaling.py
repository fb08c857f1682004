"""Bounds, policies, the budget and the pool, as users write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoscaling.settings import PolicySettings
from deployments.settings.plain import SettingsErrors, parse
from deployments.settings.replicas import ReplicaSettings
from deployments.settings.scaling import PolicyFile, named_policies
from deployments.settings_files.load import load


def model(**fields: Any) -> dict[str, Any]:
    return {"models": {"m": {"runtime": "synthetic", **fields}}}


VLLM = {"runtime": "vllm", "source": "models/llm", "task": "generate"}


def complaints(data: dict[str, Any]) -> list[str]:
    with pytest.raises(SettingsErrors) as caught:
        parse(data)
    return [str(each) for each in caught.value.mistakes]


@pytest.mark.parametrize(
    ("given", "least", "most", "initial"),
    [
        ({}, 1, 1, 1),
        ({"count": 3}, 3, 3, 3),
        ({"min": 0}, 0, 1, 1),
        ({"min": 2}, 2, 2, 2),
        ({"max": 4}, 1, 4, 1),
        ({"min": 0, "max": 4}, 0, 4, 1),
        ({"min": 3, "max": 3}, 3, 3, 3),
    ],
)
def test_a_number_is_fixed_or_lies_between_bounds(given, least, most, initial):
    replicas = ReplicaSettings.model_validate(given)
    assert (replicas.least, replicas.most, replicas.initial) == (least, most, initial)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (model(replicas={"count": 2, "min": 1, "max": 3}),
         "models.m.replicas.count: is given beside min and max; must be left out, or be alone for "
         "a fixed number"),
        (model(replicas={"min": 3, "max": 2}), "models.m.replicas.max: is 2; must be at least 3"),
        (model(replicas={"groups": [{"name": "pool"}]}),
         "models.m.replicas.groups[0].name: is pool, the name of the shared pool's replicas"),
        (model(replicas={"groups": [{"name": "g", "count": 1, "max": 2}]}),
         "models.m.replicas.groups[0]: g is not valid together with the model's settings: "
         "replicas.count"),
        (model(scaling={"spare": 1}),
         "models.m.scaling.spare: is not a field of scaling; must be given as replicas.spare"),
        (model(scaling={"policy": "fastest"}),
         "models.m.scaling.policy: is 'fastest', which is no policy; must be one of bursty, "
         "cost-first, diurnal, fixed, latency-first, scale-to-zero, or a file that ends in .yaml"),
        (model(scaling={"policy": ["fixed"]}),
         "models.m.scaling.policy: must be a policy's name, a file that ends in .yaml, or a "),
        (model(scaling={"knee": 1.5}), "models.m.scaling.knee: is 1.5; must be a number"),
        (model(scaling={"mode": "on"}), "models.m.scaling.mode"),
        (model() | {"scaling": {"pool": {"min": 3, "max": 2}}},
         "scaling.pool.max: is 2; must be at least 3 (min)"),
        (model() | {"scaling": {"pool": {"memory_limit_mib": 1023}}},
         "scaling.pool.memory_limit_mib: is 1023; must be at least 1024 (memory_mib)"),
        (model() | {"scaling": {"pool": {"models": ["x"]}}},
         "scaling.pool.models[0]: is 'x'; must be one of m"),
        (model() | {"scaling": {"pool": {"models": "some"}}},
         "scaling.pool.models: must be all, or a list of names of models"),
        (model(**VLLM) | {"scaling": {"pool": {"models": ["m"]}}},
         "scaling.pool.models[0]: is m, which has runtime vllm, which without a GPU shares no "),
        (model(**VLLM) | {"scaling": {"pool": {"models": ["m"], "num_gpus": 1}}},
         "scaling.pool.models[0]: is m, which leaves its cache to vllm, which would take what the"),
        (model(**VLLM, options={"kv_cache_gib": 1})
         | {"scaling": {"pool": {"models": ["m"], "num_gpus": 1}}},
         "scaling.pool.models[0]: is m, which would not start beside others: vllm wants 0.92 of "),
        (model(**VLLM, options={"kv_cache_gib": 1, "gpu_memory_utilization": 0.5})
         | {"scaling": {"pool": {"num_gpus": 1, "memory_mib": 1024}}},
         "scaling.pool.memory_mib: is 1024; must be more than 1024, the cache of m alone"),
        (model(task="generate", adapters={"a": "b"}) | {"scaling": {"pool": {"models": ["m"]}}},
         "scaling.pool.models[0]: is m, which has adapters: a pool replica's engines have none"),
        (model(runtime="python", source="python:m:C", dependencies=["x==1"])
         | {"scaling": {"pool": {"models": ["m"]}}},
         "scaling.pool.models[0]: is m, which has dependencies: a pool replica installs no"),
        (model() | {"scaling": {"pool": {"asleep_mib": 1}}},
         "scaling.pool.asleep_mib: is 1, but without num_gpus all weights are in the host's"),
        (model() | {"scaling": {"pool": {"num_gpus": 1.5}}}, "scaling.pool.num_gpus: is 1.5"),
        (model() | {"scaling": {"budget": {"resources": {"GPU": 1}}}}, "must be given as num_gpus"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_told_with_what_would(data, said):
    assert any(said in each for each in complaints(data)), complaints(data)


def test_every_named_policy_is_one():
    assert set(named_policies()) >= {
        "latency-first", "cost-first", "bursty", "diurnal", "scale-to-zero", "fixed",
    }  # fmt: skip
    for name in named_policies():
        parsed = parse(model(scaling={"policy": name}))
        assert parse(parsed.model_dump(mode="json")) == parsed


def test_a_policy_has_every_field_that_the_core_has_but_the_fixed_ones():
    fixed = {"instant", "windows_s", "pending_limit_s"}
    assert set(PolicyFile.model_fields) | fixed == set(PolicySettings.__dataclass_fields__)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(
        "models:\n  m:\n    runtime: synthetic\n    scaling: {policy: mine.yaml, knee: 0.7}\n"
    )
    return path


def test_a_policys_file_is_taken_in_where_the_settings_are_read(file: Path):
    (file.parent / "mine.yaml").write_text("knee: 0.4\nidle_s: 60\nspare: 2\n")
    for absolute in (True, False):
        scaling = load(file, here=False, absolute=absolute).models["m"].scaling
        assert scaling.resolved_policy() == {"knee": 0.7, "idle_s": 60.0, "spare": 2}


def test_what_is_wrong_with_a_policys_file_is_told_with_its_line(file: Path):
    (file.parent / "mine.yaml").write_text("idle_s: 60\nknee: 7\nspeed: 3\n")
    with pytest.raises(SettingsErrors) as caught:
        load(file, here=False)
    first, second = map(str, caught.value.mistakes)
    assert first.startswith(f"{file.parent / 'mine.yaml'}:2: knee: is 7; must be a number")
    assert second.startswith(f"{file.parent / 'mine.yaml'}:3: speed: unknown setting")


def test_a_policys_file_that_is_not_there_is_told_where_it_is_named(file: Path):
    with pytest.raises(SettingsErrors) as caught:
        load(file, here=False)
    (said,) = map(str, caught.value.mistakes)
    assert said == (
        f"{file}:4: models.m.scaling.policy: no file {str(file.parent / 'mine.yaml')!r}"
    )


@pytest.mark.parametrize("text", ["- knee\n", "knee\n", "[\n"])
def test_a_policys_file_that_is_no_mapping_is_refused(file: Path, text: str):
    (file.parent / "mine.yaml").write_text(text)
    with pytest.raises(SettingsErrors) as caught:
        load(file, here=False)
    assert str(caught.value.mistakes[0]).startswith(str(file.parent / "mine.yaml"))


@pytest.mark.parametrize(
    ("scaling", "replicas", "mode"),
    [
        ("{mode: off}", "{min: 0}", "off"),
        ("{policy: fixed}", "{min: 0, groups: [{name: g}, {name: h}]}", "off"),
        ("{mode: observe}", "{min: 0, max: 3}", "observe"),
    ],
)
def test_a_model_that_nothing_would_ever_start_is_refused(tmp_path, scaling, replicas, mode):
    written = f"models: {{m: {{runtime: synthetic, scaling: {scaling}, replicas: {replicas}}}}}"
    (tmp_path / "s.yaml").write_text(written)
    with pytest.raises(SettingsErrors, match=f"m.scaling: has mode {mode}, but replicas.min is 0"):
        load(tmp_path / "s.yaml")


@pytest.mark.parametrize("mode", ["observe", "off", "enforce"])
def test_one_group_of_several_may_have_none_in_every_mode(tmp_path, mode):
    groups = "[{name: g, min: 0, max: 2}, {name: h, min: 1, max: 2}]"
    written = f"scaling: {{mode: {mode}}}, replicas: {{groups: {groups}}}"
    (tmp_path / "s.yaml").write_text(f"models: {{m: {{runtime: synthetic, {written}}}}}")
    assert load(tmp_path / "s.yaml").models["m"].scaling.mode == mode
