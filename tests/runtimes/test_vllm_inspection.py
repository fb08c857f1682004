"""What may not lie in a model's folder, found before anything of it is read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from runtimes.errors import LoadError
from runtimes.types import RuntimeSettings
from runtimes.vllm.inspection import check
from runtimes.vllm.runtime import VLLMOptions, arguments


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "tokenizer.json").write_text('{"vocab": {"auto_map": 5, "a.py": 6}}')
    return tmp_path


def test_weights_and_settings_are_taken(folder):
    check([str(folder)])


@pytest.mark.parametrize("source", ["a-name/of-the-hub", "model.safetensors", "pytorch_model.bin"])
def test_what_is_no_folder_is_refused(folder, monkeypatch, source):
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")
    monkeypatch.chdir(folder)
    with pytest.raises(LoadError, match=rf"^{source} is no folder .*trust_files"):
        check([source])


def test_a_folder_that_cannot_be_looked_through_is_refused(folder, monkeypatch):
    (folder / "sub").mkdir()
    scan = os.scandir

    def locked(path):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", locked)
    with pytest.raises(LoadError, match=r"sub cannot be looked through: Permission denied"):
        check([str(folder)])


@pytest.mark.parametrize(
    "name",
    ["modeling.py", "sub/x.PY", "pytorch_model.bin", "model.pt", "a.ckpt", "a.pkl", "lib.so"],
)
def test_code_and_pickles_are_refused_by_name(folder, name):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    with pytest.raises(LoadError, match=rf"{path} is (code|a pickle).*trust_files"):
        check([str(folder)])


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "processor_config.json"])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_an_auto_map_is_refused_wherever_it_stands(folder, file, depth):
    said: object = {"auto_map": {"AutoModel": "evil--modeling.Evil"}}
    for _ in range(depth):
        said = {"text_config": [said]}
    (folder / file).write_text(json.dumps(said))
    with pytest.raises(LoadError, match=f"{file} has an auto_map"):
        check([str(folder)])


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"a":' * 200 + "1" + "}" * 200])
def test_settings_that_cannot_be_looked_through_are_refused(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(LoadError):
        check([str(folder)])


def given(**options) -> list[str]:
    settings = RuntimeSettings(name="m", runtime="vllm", source="/m", cache_dir=Path("/none"))
    return arguments(settings, VLLMOptions(**options))


def test_the_engine_fetches_no_media():
    made = given()
    at = made.index("--allowed-media-domains") + 1
    assert made[at] == "none.invalid"
    assert all(each.startswith("--") for each in made[at + 1 : at + 2])
    assert not [each for each in made if "trust" in each or "local-media" in each]


def test_an_engine_has_places_for_adapters_only_where_the_model_has_some():
    assert not [each for each in given() if "lora" in each]
