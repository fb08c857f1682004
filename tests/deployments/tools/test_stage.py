"""`headrace stage`: files come to the node's cache once, whoever asks and how often."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from file_server import FileServer, serving
from safetensors.numpy import save_file

from deployments.cli import main
from deployments.replica.artifacts.local_model import local_file
from deployments.replica.describe import runtime_settings
from deployments.settings_files.load import load
from deployments.settings_files.made import cache_dir
from deployments.tools.stage import awaits_export
from examples import make_llm
from runtimes import exporting, staging
from runtimes.errors import LoadError
from runtimes.onnxruntime.runtime import ONNXRuntimeOptions
from runtimes.source import inspect
from runtimes.types import RuntimeSettings

CONTENT = b"weights" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADRACE_SOURCES", raising=False)
    (tmp_path / "there.onnx").write_bytes(CONTENT)
    return tmp_path


def onnx(source: str, **more: Any) -> dict[str, Any]:
    return {"runtime": "onnxruntime", "source": source, **more}


def run(folder: Path, models: dict[str, Any], *options: str) -> Result:
    (folder / "settings.yaml").write_text(yaml.safe_dump({"models": models}))
    arguments = ["stage", str(folder / "settings.yaml"), *options]
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def lines(answer: Result) -> list[str]:
    """Without the seconds."""
    return [line.rpartition(" (")[0] for line in answer.stdout.splitlines()]


def test_what_lies_on_the_node_is_verified_where_it_lies(folder: Path) -> None:
    source = f"file://{folder}/there.onnx#sha256={DIGEST}"
    answer = run(
        folder, {"a": onnx(source), "b": onnx("there.onnx"), "c": {"runtime": "synthetic"}}
    )
    assert answer.exit_code == 0
    assert lines(answer) == ["a: already there", "b: already there", "c: has no files"]


def test_paths_are_relative_to_where_a_nodes_models_lie(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "models").mkdir()
    (folder / "models" / "elsewhere.onnx").write_bytes(CONTENT)
    models = {"a": onnx("elsewhere.onnx")}
    assert run(folder, models).exit_code == 1
    monkeypatch.setenv("HEADRACE_SOURCES", str(folder / "models"))
    assert run(folder, models).exit_code == 0


def test_a_model_that_cannot_be_had_holds_up_no_other(folder: Path) -> None:
    wrong = f"file://{folder}/there.onnx#sha256={'0' * 64}"
    answer = run(folder, {"a": onnx("missing.onnx"), "b": onnx(wrong), "c": onnx("there.onnx")})
    assert answer.exit_code == 1
    assert lines(answer) == ["c: already there"]
    assert "a: cannot be staged: " in answer.stderr
    assert "missing.onnx" in answer.stderr
    assert DIGEST in answer.stderr
    assert answer.stderr.endswith("2 of 3 models are not staged\n")


def test_what_lies_elsewhere_is_fetched_once_and_found_by_replicas(folder: Path) -> None:
    with serving(FileServer(CONTENT)) as server:
        source = f"{server.url()}#sha256={DIGEST}"
        assert lines(run(folder, {"a": onnx(source)})) == ["a: fetched"]
        assert lines(run(folder, {"a": onnx(source)})) == ["a: already there"]
        assert len(server.asked) == 1
        found = local_file(source, folder / "cache" / "headrace", lambda *_: None)
    assert found.read_bytes() == CONTENT


def test_a_cut_fetch_goes_on_where_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.replica.artifacts.fetch.time.sleep", lambda seconds: None)
    with serving(FileServer(CONTENT, cuts=[3000])) as server:
        assert run(folder, {"a": onnx(f"{server.url()}#sha256={DIGEST}")}).exit_code == 0
        assert server.asked[1] == "bytes=3000-"


def test_two_at_once_fetch_once(folder: Path) -> None:
    with serving(FileServer(CONTENT)) as server:
        models = {"a": onnx(f"{server.url()}#sha256={DIGEST}")}
        (folder / "settings.yaml").write_text(yaml.safe_dump({"models": models}))
        from deployments.tools.stage import stage

        codes: list[int] = []
        threads = [
            threading.Thread(
                target=lambda: codes.append(stage(folder / "settings.yaml", convert=False))
            )
            for _ in range(2)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert (codes, len(server.asked)) == ([0, 0], 1)


def test_every_groups_files_are_staged_and_told_once(folder: Path) -> None:
    groups = [{"name": "gpu", "num_gpus": 1}, {"name": "cpu", "runtime": "openvino"}]
    answer = run(folder, {"a": onnx("there.onnx", replicas={"groups": groups})})
    assert lines(answer) == ["a: already there"]


def encoder(folder: Path, family: str) -> Path:
    path = folder / family
    path.mkdir()
    config = {"model_type": family, "hidden_size": 8, "num_attention_heads": 2,
              "num_hidden_layers": 1, "vocab_size": 9, "max_position_embeddings": 9}  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    save_file({"a": np.ones(2, np.float32)}, path / "model.safetensors")
    return path


def test_a_folder_that_awaits_its_export_is_told(folder: Path) -> None:
    for family in ("roberta", "bert"):
        encoder(folder, family)
    graph = {"runtime": "onnxruntime", "source": "roberta"}
    models = {
        "a": graph, "b": {**graph, "runtime": "torch"}, "c": {**graph, "source": "bert"}
    }  # fmt: skip
    due = "a: already there, not exported to ONNX yet: --convert does it, else the first start"
    assert lines(run(folder, models)) == [due, "b: already there", "c: already there"]
    model = load(folder / "settings.yaml").models["a"]
    settings = runtime_settings("a", model, cache_dir(), lambda *_: None)
    source = inspect(folder / "roberta")
    parts = [source.digest, *exporting.key(source, settings, ONNXRuntimeOptions())]
    staging.staged(settings.cache_dir, [*parts, "standard False"], lambda _: None)
    assert lines(run(folder, models))[0] == "a: already there"


def test_a_reranker_is_exported_as_what_it_runs_as(folder: Path) -> None:
    source = inspect(encoder(folder, "roberta"))
    settings = RuntimeSettings("a", "onnxruntime", source.path, cache_dir(), task="rerank")
    assert awaits_export(settings)
    key = exporting.key(source, replace(settings, task="classify"), ONNXRuntimeOptions())
    staging.staged(cache_dir(), [source.digest, *key, "standard False"], lambda _: None)
    assert not awaits_export(settings)


@pytest.mark.parametrize("runtime", ["onnxruntime", "torch"])
def test_a_folder_whose_weights_are_cut_off_is_not_staged(folder: Path, runtime: str) -> None:
    weights = encoder(folder, "roberta") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    answer = run(folder, {"a": {"runtime": runtime, "source": "roberta"}})
    assert answer.exit_code == 1
    assert "fetch or copy the file again" in answer.stderr


def test_what_a_generating_model_starts_with_is_staged(folder: Path) -> None:
    (folder / "words").mkdir()
    (folder / "words" / "tokenizer.json").write_text("{}")
    (folder / "model").mkdir()
    (folder / "model" / "model.gguf").write_bytes(b"GGUF")
    (folder / "model" / "config.json").write_text("{}")
    vllm = {"runtime": "vllm", "source": "model", "task": "generate", "version": "1"}
    models = {
        "a": {"runtime": "synthetic", "source": "words", "task": "generate"},
        "b": {**vllm, "options": {"trust_files": True}},
        "c": vllm,
    }
    answer = run(folder, models)
    assert lines(answer) == [f"{name}: already there" for name in "abc"], answer.stderr
    (folder / "model" / "model.safetensors").write_bytes(b"cut")
    answer = run(folder, models)
    assert lines(answer) == ["a: already there", "b: already there"]
    assert "model.safetensors is cut off in its header" in answer.stderr


class Loading:
    """A backend that notes what is done with it."""

    def __init__(self, fault: str = "") -> None:
        self.fault, self.done = fault, []

    def load(self) -> None:
        self.done.append("load")
        if self.fault:
            raise LoadError(self.fault)

    def close(self) -> None:
        self.done.append("close")


@pytest.mark.parametrize(("fault", "code"), [("", 0), ("no graph", 1)])
def test_converting_loads_a_model_and_lets_it_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str, code: int
) -> None:
    backend = Loading(fault)
    monkeypatch.setattr("deployments.tools.stage.catalog.create", lambda settings: backend)
    answer = run(folder, {"a": onnx("there.onnx")}, "--convert")
    assert (answer.exit_code, backend.done) == (code, ["load", "close"])
    assert lines(answer) == (["a: already there, converted"] if not fault else [])
    assert fault in answer.stderr


def test_a_language_models_graph_is_written_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the engines, OpenVINO's alone converts."""
    closed: list[str] = []

    class Engine:
        def __init__(self, settings: RuntimeSettings) -> None:
            self._settings = settings

        async def load(self) -> None:
            self._settings.progress("staging", 1.0)

        async def close(self) -> None:
            closed.append(self._settings.name)

    monkeypatch.setattr("runtimes.catalog.create_stream", Engine)
    make_llm.make(folder / "model")
    models = {
        name: {"runtime": name, "source": "model", "task": "generate", "version": "1"}
        for name in ("openvino", "torch")
    }
    answer = run(folder, models, "--convert")
    assert answer.exit_code == 0, answer.output
    assert [line.rpartition(": ")[2] for line in lines(answer)] == [
        "already there, converted", "already there, needs no conversion"
    ]  # fmt: skip
    assert closed == ["openvino"]


def test_what_needs_a_gpu_is_left_to_its_replicas(folder: Path) -> None:
    models = {"a": onnx("there.onnx", replicas={"num_gpus": 1})}
    answer = run(folder, models, "--convert")
    assert lines(answer) == [
        "a: already there, not converted, since that needs a GPU: its first replica does it"
    ]
    assert answer.exit_code == 0


def test_wrong_settings_are_said_before_anything_is_fetched(folder: Path) -> None:
    answer = run(folder, {"a": {"runtime": "onnxruntime"}})
    assert answer.exit_code == 2
    assert "models.a.source" in answer.stderr
