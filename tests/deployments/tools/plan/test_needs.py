from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from deployments.settings_files.load import load
from deployments.tools.plan.needs import CONTEXT_MIB, GRAPHS_MIB, MemoryOverrides, Need, needs

CONFIG = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
    "num_hidden_layers": 24, "vocab_size": 32_000,
}  # fmt: skip
BERT = {"runtime": "torch", "source": "model", "replicas": {"num_gpus": 1}}
LLM = {
    "runtime": "vllm", "source": "model", "task": "generate", "precision": "bf16",
    "lengths": {"max": 1024}, "replicas": {"num_gpus": 1},
}  # fmt: skip
NOTHING = MemoryOverrides({}, {})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file({"layer.weight": np.zeros((1024, 1024), np.float32)}, path / "model.safetensors")
    return path


def of(tmp_path: Path, model: dict, told: MemoryOverrides = NOTHING) -> list[Need]:
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({"models": {"m": model}}))
    return needs(load(file, here=False), told)


def parts(need: Need) -> dict[str, tuple[int, str]]:
    return {part.name: (part.mib, part.how) for part in need.parts}


def test_a_batch_model_needs_weights_context_and_its_longest_batch(tmp_path):
    (need,) = of(tmp_path, BERT | {"lengths": {"max": 512}, "batch": {"max_tokens": 4096}})
    # 8 rows of 512: a layer's tensors, and scores of 16 heads before and after the softmax
    activations = (4096 * (6 * 1024 + 3 * 4096) + 2 * 8 * 16 * 512 * 512) * 4
    assert parts(need) == {
        "weights": (4, "counted"),
        "context": (CONTEXT_MIB, "allowance"),
        "activations": (activations >> 20, "rule"),
    }
    assert need.mib == -(-11 * sum(part.mib for part in need.parts) // 10)


def test_a_sparse_model_also_needs_a_number_for_each_word_at_each_token(tmp_path):
    dense = BERT | {"task": "embed", "options": {"pooling": "max"}}
    sparse = dense | {"options": {"pooling": "splade"}}
    ((plain,), (words,)) = of(tmp_path, dense), of(tmp_path, sparse)
    more = parts(words)["activations"][0] - parts(plain)["activations"][0]
    assert abs(more - (2 * 8192 * CONFIG["vocab_size"] * 4 >> 20)) <= 1


def test_a_bound_on_gpu_memory_stands_for_weights_and_activations(tmp_path):
    (need,) = of(tmp_path, BERT | {"options": {"gpu_memory_mib": 1024}})
    assert parts(need) == {
        "weights": (4, "counted"),
        "context": (CONTEXT_MIB, "allowance"),
        "activations": (1020, "set"),
    }


def test_a_single_row_longer_than_a_batch_may_be_still_counts(tmp_path):
    (need,) = of(tmp_path, BERT | {"lengths": {"max": 2048}, "batch": {"max_tokens": 64}})
    assert need.parts[2].text == "1 rows of 2048, 2,048 tokens"


def test_half_the_bits_take_half_the_weights(tmp_path):
    (need,) = of(tmp_path, BERT | {"precision": "fp16"})
    assert parts(need)["weights"] == (2, "counted")


def test_a_model_of_unknown_shape_is_given_a_rule_that_says_so(tmp_path, folder):
    (folder / "config.json").write_text("{}")
    (need,) = of(tmp_path, BERT)
    assert parts(need)["activations"] == (512, "rule")
    assert need.parts[2].text.startswith("its shape is not known")


def test_an_engine_needs_its_cache_as_it_is_set(tmp_path):
    (need,) = of(tmp_path, LLM | {"options": {"kv_cache_gib": 2, "max_num_batched_tokens": 2048}})
    step = 2048 * (6 * 1024 + 3 * 4096) * 2 + 256 * 32_000 * 4
    assert parts(need) == {
        "weights": (2, "counted"),
        "context": (CONTEXT_MIB, "allowance"),
        "kv cache": (2048, "set"),
        "activations": (-(-step // (1 << 20)), "rule"),
        "graphs": (GRAPHS_MIB, "allowance"),
    }
    assert need.remarks == ()


def test_an_engine_without_a_set_cache_is_given_room_for_sequences_and_a_remark(tmp_path):
    token = 2 * 24 * 1024 * 2
    (need,) = of(tmp_path, LLM | {"options": {"max_num_seqs": 4, "enforce_eager": True}})
    assert parts(need)["kv cache"] == (4 * 1024 * token >> 20, "set")
    assert "graphs" not in parts(need)
    assert need.remarks[0].startswith("set options.kv_cache_gib")
    (need,) = of(tmp_path, LLM)
    assert parts(need)["kv cache"] == (8 * 1024 * token >> 20, "rule")


def test_adapters_are_said_to_be_left_out(tmp_path):
    (need,) = of(tmp_path, LLM | {"options": {"kv_cache_gib": 2}, "adapters": {"a": "folder"}})
    assert need.remarks == ("memory of LoRA adapters is not counted",)


def test_what_is_given_stands_for_everything_without_a_margin(tmp_path):
    (need,) = of(tmp_path, BERT, MemoryOverrides({"m": 5_000}, {}))
    assert need.mib == 5_000


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            BERT | {"source": "https://example.org/m.onnx?key=1#sha256=" + "0" * 64},
            "its file is not on this machine (https://example.org/m.onnx); --need m=MIB sets it",
        ),
        (BERT | {"source": "nowhere"}, "its file cannot be read here: no file or folder"),
        (
            BERT | {"replicas": {"num_gpus": 2}},
            "a replica takes 2 GPUs; a slice is a part of one",
        ),
        (
            LLM | {"options": {"tensor_parallel_size": 2}, "replicas": {"num_gpus": 2}},
            "a replica takes 2 GPUs; a slice is a part of one",
        ),
        (
            LLM | {"options": {"kv_cache_gib": 0.01}},
            "options.kv_cache_gib is 0.01, less than one sequence of lengths.max (1,024 tokens) "
            "takes; must be at least 0.09",
        ),
        (
            BERT | {"runtime": "openvino"},
            "its runtime is openvino, which does not run on these GPUs",
        ),
        (BERT | {"options": {"device": "cpu"}}, "options.device is cpu"),
        (
            BERT | {"options": {"gpu_memory_mib": 3}},
            "options.gpu_memory_mib is 3, less than its weights take (4 MiB)",
        ),
    ],
)
def test_what_cannot_be_known_or_run_is_said(tmp_path, model, reason):
    (need,) = of(tmp_path, model)
    assert need.unknown.startswith(reason)
    assert not need.parts


def test_an_engine_of_unknown_shape_is_not_guessed(tmp_path, folder):
    (folder / "config.json").write_text("{}")
    (need,) = of(tmp_path, LLM)
    assert need.unknown.startswith("its config.json does not say its layers")


def test_who_asks_for_no_gpu_is_left_out_unless_named(tmp_path):
    model = BERT | {"replicas": {}}
    assert of(tmp_path, model)[0].skipped
    assert not of(tmp_path, model, MemoryOverrides({"m": 100}, {}))[0].skipped
    assert not of(tmp_path, model, MemoryOverrides({}, {"m": "1g.10gb"}))[0].skipped
    assert not of(tmp_path, model | {"runtime": "tensorrt"})[0].skipped


def test_groups_are_planned_each_by_itself(tmp_path):
    groups = [
        {"name": "gpu", "count": 3, "resources": {"mig_1g_18gb": 1}, "num_gpus": 1},
        {"name": "me", "resources": {"mig_1g_18gb_me": 1}},
        {"name": "cpu", "count": 2},
    ]
    found = of(tmp_path, BERT | {"replicas": {"groups": groups, "surge_percent": 50}})
    assert [(each.name, each.replicas, each.surge, each.profile) for each in found] == [
        ("m/gpu", 3, 2, "1g.18gb"), ("m/me", 1, 1, "1g.18gb+me"), ("m/cpu", 2, 1, ""),
    ]  # fmt: skip
    assert found[2].skipped


def test_a_group_that_takes_shorter_rows_needs_less(tmp_path):
    groups = [
        {"name": "whole"},
        {"name": "slice", "lengths": {"max": 128}, "batch": {"max_size": 4}},
    ]
    model = BERT | {"lengths": {"max": 512}, "replicas": {"num_gpus": 1, "groups": groups}}
    whole, cut = of(tmp_path, model)
    assert cut.parts[2].text == "4 rows of 128, 512 tokens"
    assert cut.mib < whole.mib


def test_what_is_told_of_a_group_goes_before_what_is_told_of_its_model(tmp_path):
    groups = [{"name": "a"}, {"name": "b"}]
    told = MemoryOverrides({"m": 100, "m/b": 200}, {"m/b": "2g.20gb"})
    one, two = of(tmp_path, BERT | {"replicas": {"groups": groups}}, told)
    assert (one.mib, one.profile) == (100, "")
    assert (two.mib, two.profile) == (200, "2g.20gb")


def test_replicas_that_would_share_a_slice_are_said_to_get_one_each(tmp_path):
    (need,) = of(tmp_path, BERT | {"replicas": {"num_gpus": 0.5}})
    assert "a slice of its own" in need.remarks[0]


def of_pool(tmp_path: Path, told: MemoryOverrides = NOTHING, **pool: object) -> Need:
    models = {"m": BERT, "s": {"runtime": "synthetic"}}
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({"models": models, "scaling": {"pool": pool}}))
    return needs(load(file, here=False), told)[-1]


def test_a_replica_of_the_pool_needs_its_weights_and_the_largest_batch_of_its_models(tmp_path):
    need = of_pool(tmp_path, num_gpus=1, memory_mib=3_000, max=3)
    (alone,) = of(tmp_path, BERT)
    assert parts(need) == {
        "weights": (3_000, "set"),
        "context": (CONTEXT_MIB, "allowance"),
        "activations": parts(alone)["activations"],
    }
    assert (need.name, need.min_replicas, need.replicas) == ("scaling.pool", 0, 3)


def test_a_pool_whose_models_run_without_a_gpu_needs_no_activations(tmp_path):
    assert parts(of_pool(tmp_path, num_gpus=1, models=["s"]))["activations"] == (0, "rule")


def test_a_pool_is_left_out_or_refused_as_a_model_is(tmp_path):
    assert of_pool(tmp_path).skipped
    assert of_pool(tmp_path, num_gpus=2).unknown.startswith("a replica takes 2 GPUs")
    assert of_pool(tmp_path, MemoryOverrides({"scaling.pool": 700}, {})).mib == 700
    assert of_pool(tmp_path, resources={"mig_2g_20gb": 1}).profile == "2g.20gb"


def test_a_synthetic_model_takes_no_memory(tmp_path):
    (need,) = of(tmp_path, {"runtime": "synthetic", "replicas": {"num_gpus": 1}})
    assert need.mib == 0
