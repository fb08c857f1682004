"""Groups of replicas: what each says its own way, and what makes no sense together."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from deployments.settings.groups import group_views
from deployments.settings.model import ModelSettings
from deployments.settings.plain import SettingsErrors, parse, settings_digest

GPU = {"name": "gpu", "num_gpus": 1}
CPU = {"name": "cpu", "count": 4, "threads": 2, "options": {"base_ms": 20}}


def written(*groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    replicas = {"count": 2, "slots": 3, "groups": list(groups)}
    return {"runtime": "synthetic", "options": {"base_ms": 2}, "replicas": replicas} | more


def model(*groups: dict[str, Any], **more: Any) -> ModelSettings:
    return ModelSettings.model_validate(written(*groups, **more))


def complaints(*groups: dict[str, Any], **more: Any) -> list[str]:
    with pytest.raises(SettingsErrors) as caught:
        parse({"models": {"m": written(*groups, **more)}})
    return [str(each) for each in caught.value.mistakes]


def test_what_a_group_does_not_say_it_takes_from_the_model() -> None:
    views = model(GPU, CPU).views()
    gpu, cpu = views["gpu"].replicas, views["cpu"].replicas
    assert (gpu.count, gpu.slots, gpu.num_gpus, gpu.threads) == (2, 3, 1, 0)
    assert (cpu.count, cpu.slots, cpu.num_gpus, cpu.threads) == (4, 3, 0, 2)
    assert views["gpu"].options == {"base_ms": 2}
    assert views["cpu"].options == {"base_ms": 20}


def test_a_view_says_nothing_of_the_other_groups() -> None:
    one = group_views(written(GPU, CPU))["gpu"]
    other = group_views(written(GPU, CPU | {"options": {"base_ms": 30}}))["gpu"]
    assert settings_digest(one) == settings_digest(other)
    assert "groups" not in one["replicas"]


def test_a_model_without_groups_has_no_views() -> None:
    assert group_views({"runtime": "synthetic"}) == {}
    assert model().views() == {}


def test_a_group_may_have_another_runtime_and_number_format() -> None:
    bert = written(
        {"name": "gpu", "runtime": "tensorrt", "precision": "fp16"},
        {"name": "cpu", "runtime": "openvino", "precision": "int8"},
        source="models/bert",
        runtime="onnxruntime",
    ) | {"options": {}}
    views = ModelSettings.model_validate(bert).views()
    assert [(v.runtime, v.precision) for v in views.values()] == [
        ("tensorrt", "fp16"), ("openvino", "int8"),
    ]  # fmt: skip


def test_a_reserve_says_after_which_wait_it_is_used() -> None:
    reserve = model(GPU, CPU | {"overflow": {"after_ms": 250}}).replicas.groups[1]
    assert (reserve.after_s, model(GPU).replicas.groups[0].after_s) == (0.25, 0.0)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (
            (GPU, GPU),
            "models.m.replicas.groups[1].name: is 'gpu', the name of group 0 too; must be another",
        ),
        (({"name": "Big GPU"},), "models.m.replicas.groups[0].name: is 'Big GPU'; must be 1 to 32"),
        (
            (GPU | {"overflow": {"after_ms": 5}},),
            "groups[0].overflow: must be left out of at least one",
        ),
        ((GPU | {"overflow": {"after_ms": 0}},), "groups[0].overflow.after_ms"),
        (
            ({"name": "g", "num_gpus": 1.5},),
            "groups[0]: g is not valid together with the model's settings",
        ),
        (({"name": "g", "resources": {"GPU": 1}},), "must be given as num_gpus"),
        (({"name": "g", "resources": {"mig": 0}},), "groups[0].resources.mig"),
        (({"name": "g", "spare": 1},), "groups[0].spare: unknown setting"),
    ],
)
def test_groups_that_make_no_sense_are_told_at_their_place(
    groups: tuple[dict[str, Any], ...], said: str
) -> None:
    assert any(said in each for each in complaints(*groups)), complaints(*groups)


def test_a_generating_group_stands_beside_generating_ones_alone() -> None:
    llm: dict[str, Any] = {"runtime": "synthetic", "task": "generate", "source": "models/llm"}
    llm["replicas"] = {"groups": [{"name": "a", "runtime": "vllm"}, {"name": "b"}]}
    assert [view.runtime for view in ModelSettings.model_validate(llm).views().values()] == [
        "vllm", "synthetic",
    ]  # fmt: skip
    llm["replicas"] = {"groups": [{"name": "a", "runtime": "onnxruntime"}]}
    with pytest.raises(ValidationError, match=r"a is not valid .* which cannot generate; must be"):
        ModelSettings.model_validate(llm)
    batches = {"runtime": "torch", "source": "models/bert"}
    batches["replicas"] = {"groups": [{"name": "a", "runtime": "vllm"}]}
    with pytest.raises(ValidationError, match=r"a is not valid .* is tensors; must be generate"):
        ModelSettings.model_validate(batches)


def test_a_replica_may_ask_for_memory_custom_resources_and_labels() -> None:
    replicas = {"memory_mib": 2048, "resources": {"mig_3g": 1}, "labels": {"zone": "in(a, b)"}}
    found = ModelSettings.model_validate({"runtime": "synthetic", "replicas": replicas}).replicas
    assert (found.memory_mib, found.resources, found.labels) == (
        2048, {"mig_3g": 1.0}, {"zone": "in(a, b)"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mib", "slice_", "wrong"),
    [
        (10_240, "mig_1g_10gb", False),
        (10_241, "mig_1g_10gb", True),
        (10_241, "mig_2g_20gb", False),
        (99_999, "fpga", False),
    ],
)
def test_more_gpu_memory_than_the_slice_has_is_told(
    tmp_path: Any, mib: int, slice_: str, wrong: bool
) -> None:
    from deployments.settings_files.load import load

    path = tmp_path / "settings.yaml"
    (tmp_path / "m.onnx").write_bytes(b"x")
    path.write_text(
        "models:\n  m:\n    runtime: torch\n    source: m.onnx\n    replicas:\n      groups:\n"
        "        - name: a\n        - name: b\n          num_gpus: 1\n"
        f"          resources: {{{slice_}: 1}}\n          options: {{gpu_memory_mib: {mib}}}\n"
    )
    with pytest.raises(SettingsErrors) as raised:
        load(path)
    said = {each.path: each.message for each in raised.value.mistakes}
    found = said.get("models.m.replicas.groups[1].options")
    assert found == (
        f"option 'gpu_memory_mib' is {mib}, but a slice of {slice_} has less than 10240 MiB"
        if wrong else None
    )  # fmt: skip


def test_options_that_a_groups_backend_does_not_know_are_told_at_the_group(tmp_path: Any) -> None:
    from deployments.settings_files.load import load

    path = tmp_path / "settings.yaml"
    path.write_text(
        "models:\n  m:\n    runtime: synthetic\n    replicas:\n      groups:\n"
        "        - {name: a}\n        - {name: b, options: {bases: 3}}\n"
    )
    with pytest.raises(SettingsErrors) as caught:
        load(path)
    (mistake,) = caught.value.mistakes
    assert mistake.path == "models.m.replicas.groups[1].options"


# ---- lengths and batches -------------------------------------------------------------------------

SLICE = {"name": "slice", "lengths": {"max": 128}, "batch": {"max_size": 4}}
WHOLE = {"name": "whole"}


def test_a_group_may_take_shorter_rows_and_smaller_batches_than_the_model() -> None:
    batch = {"max_size": 64, "max_tokens": 4096}
    views = model(SLICE, WHOLE, lengths={"max": 512, "truncate": True}, batch=batch).views()
    own, whole = views["slice"], views["whole"]
    assert (own.lengths.max, own.lengths.truncate, whole.lengths.max) == (128, True, 512)
    assert (own.batch.max_size, own.batch.max_tokens) == (4, 4096)
    assert (whole.batch.max_size, whole.batch.max_tokens) == (64, 4096)


def test_listed_edges_of_a_group_end_at_its_longest_row() -> None:
    made = model(SLICE, WHOLE, lengths={"max": 512, "buckets": [64, 128, 512]})
    assert made.views()["slice"].lengths.buckets == (64, 128)


def test_a_longer_row_for_the_model_does_not_restart_a_group_with_its_own() -> None:
    one, other = (
        group_views(written(SLICE, WHOLE, lengths={"max": longest}))["slice"]
        for longest in (512, 1024)
    )
    assert settings_digest(one) == settings_digest(other)


def test_the_pool_and_canaries_run_a_group_that_takes_all_lengths() -> None:
    made = model(SLICE, WHOLE, lengths={"max": 512})
    assert made.main_view() == made.views()["whole"]
    said = model(SLICE, WHOLE | {"lengths": {"max": 512}}, lengths={"max": 512})
    assert said.main_view() == said.views()["whole"]
    assert model().main_view() == model()


@pytest.mark.parametrize(
    ("groups", "more", "said"),
    [
        ((SLICE, WHOLE), {}, "lengths.max: is missing; must be given, because group slice takes "
         "rows of at most 128 only"),
        ((SLICE,), {"lengths": {"max": 512}}, "replicas.groups: take rows of at most 128 "
         "(reserves left out), so that nobody takes those of 129 to 512"),
        ((SLICE, WHOLE | {"overflow": {"after_ms": 5}}), {"lengths": {"max": 512}},
         "so that nobody takes those of 129 to 512"),
        ((SLICE, WHOLE), {"lengths": {"max": 512, "buckets": [64, 256, 512]}},
         "replicas.groups[0].lengths.max: is 128, which is no edge of lengths.buckets; must be "
         "one, such as 64 or 256"),
        ((SLICE, WHOLE), {"lengths": {"max": 512, "buckets": 1}},
         "lengths.buckets: is 1; must be at least 2"),
        ((SLICE, WHOLE), {"lengths": {"max": 64}},
         "replicas.groups[0].lengths.max: is 128, above lengths.max (64); must be at most that"),
        ((SLICE | {"lengths": {"max": 16, "buckets": 4}}, WHOLE), {"lengths": {"max": 64}},
         "replicas.groups[0].lengths.buckets"),
    ],
)  # fmt: skip
def test_lengths_of_groups_that_leave_a_gap_or_make_no_sense_are_refused(
    groups: tuple[dict[str, Any], ...], more: dict[str, Any], said: str
) -> None:
    (complaint,) = complaints(*groups, **more)
    assert said in complaint


def test_groups_of_engines_have_no_lengths() -> None:
    replicas = {"groups": [{"name": "slice", "lengths": {"max": 128}}, WHOLE]}
    generates = {"runtime": "synthetic", "task": "generate", "lengths": {"max": 512}}
    with pytest.raises(SettingsErrors) as caught:
        parse({"models": {"m": generates | {"replicas": replicas}}})
    assert "an engine's cache decides which prompts it takes" in str(caught.value.mistakes[0])
