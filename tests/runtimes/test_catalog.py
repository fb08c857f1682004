"""The list of backends, and mistakes in a model's files that show without them."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from runtimes import catalog
from runtimes.catalog import FileRequirements, check_files
from runtimes.errors import LoadError, MissingBackend
from runtimes.synthetic.runtime import SyntheticRuntime
from runtimes.types import RuntimeSettings


def settings(**fields: object) -> RuntimeSettings:
    return RuntimeSettings(**{"name": "m", "source": None, "cache_dir": Path("unused"), **fields})


def test_backend_is_made_by_name():
    assert isinstance(catalog.create(settings(runtime="synthetic")), SyntheticRuntime)


def test_unknown_backend_gets_the_list_and_the_close_one():
    with pytest.raises(LoadError, match=r"'openvno', did you mean 'openvino'\? known: onnx"):
        catalog.check("openvno", {}, "fp32")


def test_wrong_options_and_precisions_are_named():
    with pytest.raises(LoadError, match="'base_m', did you mean 'base_ms'"):
        catalog.check("synthetic", {"base_m": 1}, "fp32")
    with pytest.raises(LoadError, match="torch has no precision 'int4', known: fp32, bf16"):
        catalog.check("torch", {}, "int4")


@pytest.mark.parametrize(
    ("runtime", "task", "instead"),
    [
        ("openvino", "embed", "replicas.memory_limit_mib"),
        ("python", "tensors", "set_per_process_memory_fraction"),
        ("synthetic", "tensors", "no memory"),
        ("tensorrt", "embed", "lower batch.max_size"),
        ("vllm", "generate", "gpu_memory_utilization"),
    ],
)
def test_backends_that_cannot_keep_to_gpu_memory_say_what_can_be_set(runtime, task, instead):
    with pytest.raises(LoadError, match=f"{runtime} has no option 'gpu_memory_mib': .*{instead}"):
        catalog.check(runtime, {"gpu_memory_mib": 1024}, "fp32", task)


@pytest.mark.parametrize("runtime", ["onnxruntime", "torch"])
def test_backends_that_keep_to_gpu_memory_take_it(runtime):
    catalog.check(runtime, {"gpu_memory_mib": 1024}, "fp32")


def test_missing_package_is_told_with_the_extra_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install 'headrace[torch]'" in (catalog.available("torch") or "")
    assert catalog.available("synthetic") is None
    with pytest.raises(MissingBackend, match=r"headrace\[torch\]"):
        catalog.create(settings(runtime="torch"))


def test_preloading_imports_a_backends_library_its_own_way(monkeypatch):
    asked = []
    module = importlib.import_module("runtimes.openvino.runtime")
    monkeypatch.setattr(module, "library", lambda: asked.append("openvino"))
    monkeypatch.setattr(catalog, "available", lambda runtime, task: None)
    for runtime in ("openvino", "synthetic"):
        catalog.preload(runtime)
    assert asked == ["openvino"]


def test_preloading_what_is_not_installed_does_nothing(monkeypatch):
    monkeypatch.setattr(catalog, "available", lambda runtime, task: "it is not installed")
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    catalog.preload("onnxruntime")
    assert "onnxruntime" not in sys.modules


BERT = {"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "max_position_embeddings": 32, "vocab_size": 20}  # fmt: skip


def asked(runtime: str = "onnxruntime", **fields: Any) -> FileRequirements:
    given: dict[str, Any] = {"task": "tensors", "options": {}, "precision": "fp32"}
    return FileRequirements(runtime, **{**given, "max_length": 32, **fields})


def folder(path: Path, **config: Any) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({**BERT, **config}))
    save_file({"a": np.ones(2, np.float32)}, path / "model.safetensors")
    return path


def archive(path: Path, graph: Any, name: str = "models/model.json") -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("m/archive_format", "pt2")
        file.writestr(f"m/{name}", json.dumps(graph))
    return path


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("m.pkl", pickle.dumps([1]), "may be a pickle.*skl2onnx"),
        ("m.joblib", b"x", "may be a pickle.*skl2onnx"),
        ("m.pth", b"PK", r"may be a pickle.*torch\.export\.save"),
        ("scripted.pt", b"PK", r"may be a pickle.*torch\.onnx\.export"),
        ("xgb.json", b"{}", "not known.*onnxmltools"),
        ("m.keras", b"PK", "not known.*tf2onnx"),
        ("m.onnx", pickle.dumps([1]), "no ONNX model"),
        ("m.onnx", b"", "is empty"),
    ],
)
def test_a_file_that_is_no_model_here_says_what_to_make_of_it(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LoadError, match=said):
        check_files(tmp_path / name, asked())


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "tensorrt", "torch"])
@pytest.mark.parametrize("kind", ["t5", "wav2vec2", None])
def test_a_folder_of_another_family_is_named(tmp_path, runtime, kind):
    with pytest.raises(LoadError, match=rf"model_type {kind!r} is not supported.*roberta.*ONNX"):
        check_files(folder(tmp_path / "m", model_type=kind), asked(runtime))


@pytest.mark.parametrize(
    ("config", "task", "said"),
    [
        ({"is_decoder": True}, "tensors", "decoder"),
        ({"position_embedding_type": "relative_key"}, "tensors", "absolute"),
        ({"architectures": ["BertModel"]}, "classify", "BertModel; task classify needs one"),
        (
            {"architectures": ["BertModel"]},
            "rerank",
            "BertModel; task rerank needs one that ends with ForSequenceClassification or Qwen3",
        ),
    ],
)
def test_what_a_folder_cannot_do_is_named(tmp_path, config, task, said):
    with pytest.raises(LoadError, match=said):
        check_files(folder(tmp_path / "m", **config), asked(task=task))


def test_a_family_whose_first_position_is_behind_the_paddings_takes_fewer_tokens(tmp_path):
    path = folder(tmp_path / "m", model_type="roberta", max_position_embeddings=34, pad_token_id=1)
    check_files(path, asked(max_length=32))
    with pytest.raises(LoadError, match="takes rows of 32 tokens at most"):
        check_files(path, asked(max_length=33))


def test_rows_longer_than_the_folders_positions_are_refused(tmp_path):
    path = folder(tmp_path / "m")
    check_files(path, asked(max_length=32))
    with pytest.raises(LoadError, match=r"lengths\.max is 33; set lengths\.max to 32"):
        check_files(path, asked(max_length=33))


@pytest.mark.parametrize(
    ("runtime", "options", "said"),
    [
        ("openvino", {}, "set the option pooling"),
        ("torch", {}, "set the option pooling"),
        ("torch", {"pooling": "lasttoken"}, None),
        ("openvino", {"pooling": "mean"}, None),
    ],
)
def test_an_embedding_without_a_pooling_is_refused(tmp_path, runtime, options, said):
    path = folder(tmp_path / "m")
    if said is None:
        check_files(path, asked(runtime, task="embed", options=options))
        return
    with pytest.raises(LoadError, match=said):
        check_files(path, asked(runtime, task="embed", options=options))


@pytest.mark.parametrize("task", ["classify", "rerank"])
@pytest.mark.parametrize("options", [{"pooling": "mean"}, {"normalize": True}])
def test_a_pooling_is_refused_where_scores_are_read(tmp_path, task, options):
    path = folder(tmp_path / "m", architectures=["BertForSequenceClassification"])
    check_files(path, asked("torch", task=task))
    said = f"option {next(iter(options))} is for embeddings, and task {task} reads .* leave the"
    with pytest.raises(LoadError, match=said):
        check_files(path, asked("torch", task=task, options=options))


def test_an_option_that_asks_for_nothing_passes_where_scores_are_read(tmp_path):
    path = folder(tmp_path / "m", architectures=["BertForSequenceClassification"])
    check_files(path, asked("torch", task="classify", options={"normalize": False}))


@pytest.mark.parametrize(
    ("config", "options", "sizes", "wrong"),
    [
        ({}, {}, [(2, 3), (3, 1)], None),
        ({}, {}, [(1, 3)], (1, 2)),
        ({}, {}, [(2, 3), (2, 1)], (2, 3)),
        ({"hidden_size": 1}, {"pooling": "mean"}, [(2, 3)], (2, 1)),
        ({"model_type": "distilbert", "hidden_size": 9, "dim": 1}, {}, [(2, 3)], None),
        ({"hidden_size": None}, {}, [(5, 3)], None),
    ],
)
def test_a_layer_behind_the_pooling_reads_what_that_makes(tmp_path, config, options, sizes, wrong):
    """The pooling puts two modes side by side; what its file says of the width, nothing reads."""
    path = folder(tmp_path / "m", **{"hidden_size": 1, **config})
    modules = [{"type": "m.Transformer", "path": ""}, {"type": "m.Pooling", "path": "1_Pooling"}]
    (path / "1_Pooling").mkdir()
    said = {"pooling_mode": ["mean", "cls"], "word_embedding_dimension": 384}
    (path / "1_Pooling/config.json").write_text(json.dumps(said))
    for number, (reads, writes) in enumerate(sizes):
        place = path / f"dense_{number}"
        place.mkdir()
        (place / "config.json").write_text(
            json.dumps({"in_features": reads, "out_features": writes})
        )
        save_file(
            {"linear.weight": np.ones((writes, reads), np.float32)}, place / "model.safetensors"
        )
        modules.append({"type": "m.Dense", "path": place.name})
    (path / "modules.json").write_text(json.dumps(modules))
    given = asked("torch", task="embed", options=options)
    if wrong is None:
        check_files(path, given)
        return
    with pytest.raises(LoadError, match="is {}, and the vectors .* have {} numbers".format(*wrong)):
        check_files(path, given)


@pytest.mark.parametrize("task", ["embed", "generate"])
def test_weights_that_are_cut_off_are_refused(tmp_path, task):
    path = folder(tmp_path / "m")
    runtime = "vllm" if task == "generate" else "torch"
    given = asked(runtime, task=task, options={} if task == "generate" else {"pooling": "mean"})
    check_files(path, given)
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(LoadError, match="fetch or copy the file again"):
        check_files(path, given)


def test_of_a_language_model_only_what_the_engine_reads_is_checked(tmp_path):
    path = folder(tmp_path / "m")
    given = asked("vllm", task="generate")
    (path / "consolidated.safetensors").write_bytes(b"cut")
    with pytest.raises(LoadError, match="consolidated"):
        check_files(path, given)
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    check_files(path, given)
    (path / "consolidated.safetensors").unlink()
    index.unlink()
    (path / "more.safetensors").symlink_to("nowhere")
    with pytest.raises(LoadError, match="cannot be read: No such file"):
        check_files(path, given)


@pytest.mark.parametrize("header", [0, 1])
def test_a_header_too_short_for_json_is_refused_unread(tmp_path, header):
    path = folder(tmp_path / "m")
    (path / "model.safetensors").write_bytes(header.to_bytes(8, "little") + b"{}" * 50)
    with pytest.raises(LoadError, match="is no safetensors file"):
        check_files(path, asked())


@pytest.mark.parametrize(
    ("runtime", "other"), [("openvino", "torch"), ("onnxruntime", "torch"), ("tensorrt", "torch")]
)
def test_a_kind_that_the_runtime_does_not_run_names_one_that_does(tmp_path, runtime, other):
    path = archive(tmp_path / "m.pt2", {})
    with pytest.raises(LoadError, match=rf"{runtime} runs .*which {other} can run"):
        check_files(path, asked(runtime))


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        ({"target": "torch.os.system"}, r"could run code.*operator 'torch\.os\.system'"),
        ({"name": "x'); import os"}, "could run code"),
    ],
)
def test_an_archive_whose_graph_could_run_code_is_refused(tmp_path, graph, said):
    with pytest.raises(LoadError, match=said):
        check_files(archive(tmp_path / "m.pt2", graph), asked("torch"))


def test_an_archive_without_a_graph_is_refused(tmp_path):
    with pytest.raises(LoadError, match=r"models/model\.json"):
        check_files(archive(tmp_path / "m.pt2", {}, "models/other.json"), asked("torch"))


def test_an_archive_keeps_its_own_precision(tmp_path):
    path = archive(tmp_path / "m.pt2", {"target": "torch.ops.aten.__and__.Tensor"})
    check_files(path, asked("torch"))
    with pytest.raises(LoadError, match="leave precision out"):
        check_files(path, asked("torch", precision="bf16"))


def language_model(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text('{"model_type": "llama"}')
    return path


@pytest.mark.parametrize("name", ["modeling.py", "pytorch_model.bin"])
def test_a_language_models_folder_is_looked_through(tmp_path, name):
    path = language_model(tmp_path / "m")
    check_files(path, asked("vllm", task="generate"))
    (path / name).write_bytes(b"x")
    with pytest.raises(LoadError, match=name):
        check_files(path, asked("vllm", task="generate"))
    check_files(path, asked("vllm", task="generate", options={"trust_files": True}))


def test_a_folder_that_holds_no_language_model_is_refused(tmp_path):
    with pytest.raises(LoadError, match=r"no config\.json"):
        check_files(tmp_path, asked("vllm", task="generate"))


def test_a_folder_of_hugging_faces_cache_is_taken(tmp_path):
    real = folder(tmp_path / "real")
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(real.iterdir())):
        file.rename(blobs / f"{number}")
        os.symlink(f"../../blobs/{number}", snapshot / file.name)
    check_files(snapshot, asked())


@pytest.mark.parametrize(
    ("runtime", "package", "imported"),
    [
        ("torch", "torch", {"runtimes.torch.causal", "runtimes.generation.texts"}),
        ("openvino", "openvino", {"runtimes.openvino.causal", "runtimes.generation.texts"}),
    ],
)
def test_preloading_an_engine_imports_all_that_its_models_need(runtime, package, imported):
    """In a process of its own, since others' tests may have imported them."""
    if catalog.available(runtime, "generate") is not None:
        pytest.skip(f"{package} is not installed")
    said = (
        "import sys; from runtimes import catalog; "
        f"catalog.preload({runtime!r}, 'generate'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert imported <= set(done.stdout.split())
