"""A model's sources of every kind become paths of this node; its version does not notice."""

from __future__ import annotations

import hashlib
import io
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
from file_server import FileServer, serving

from deployments.replica import describe
from deployments.replica.artifacts import fetch
from deployments.replica.artifacts.fetch import sha256_of
from deployments.replica.artifacts.local_model import local_file, local_model
from deployments.settings.model import ModelSettings
from deployments.settings.remote_source import SourceError

ROOT = Path(__file__).parents[4]


def quiet(*_: object) -> None:
    """Hears no progress."""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def store():
    """fsspec's store in memory, empty."""
    memory = fsspec.filesystem("memory")
    yield memory
    memory.rm("/", recursive=True)


@pytest.fixture
def folder(tmp_path, store) -> Path:
    """A folder, and the same below memory://models/minilm."""
    here = tmp_path / "minilm"
    for name in ("config.json", "Zzz", "1_Pooling/config.json", "ä b.txt"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(f"content of {name}")
        store.pipe_file(f"/models/minilm/{name}", (here / name).read_bytes())
    return here


def test_the_digest_of_a_folder_is_what_the_documented_command_prints(folder):
    page = (ROOT / "docs" / "sources.md").read_text().splitlines()
    (command,) = (line for line in page if line.startswith("find . -type f"))
    printed = subprocess.run(command, shell=True, cwd=folder, capture_output=True, check=True)
    assert printed.stdout.split()[0].decode() == sha256_of(folder)


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_folder_of_an_object_store_is_fetched_whole(tmp_path, folder, slash):
    source = f"memory://models/minilm{slash}#sha256={sha256_of(folder)}"
    told: list[float] = []
    path = local_file(source, tmp_path / "cache", lambda _, share: told.append(share))
    assert path.name == "minilm"
    assert sha256_of(path) == sha256_of(folder)
    assert told == sorted(told)
    inside = local_file(f"{source}&inside=1_Pooling/config.json", tmp_path / "cache", quiet)
    assert inside == path / "1_Pooling" / "config.json"


def test_a_folder_that_has_another_file_is_refused(tmp_path, folder, store):
    digest = sha256_of(folder)
    store.pipe_file("/models/minilm/modeling.py", b"import os")
    with pytest.raises(SourceError, match=r"memory://models/minilm: its SHA-256 is .*nothing of"):
        local_file(f"memory://models/minilm#sha256={digest}", tmp_path / "cache", quiet)


def test_a_folder_is_gone_on_with_where_it_was_left(tmp_path, folder, store, monkeypatch):
    source = f"memory://models/minilm/#sha256={sha256_of(folder)}"
    kind, read = type(store), type(store).open
    opened: list[str] = []

    def failing(self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        opened.append(path)
        if len(opened) == 3:
            raise KeyboardInterrupt
        return read(self, path, *args, **kwargs)

    monkeypatch.setattr(kind, "open", failing)
    with pytest.raises(KeyboardInterrupt):
        local_file(source, tmp_path / "cache", quiet)
    path = local_file(source, tmp_path / "cache", quiet)
    assert sha256_of(path) == sha256_of(folder)
    assert len(opened) == len(set(opened)) + 1 == 5


def test_an_object_is_fetched_and_its_absence_told(tmp_path, store):
    store.pipe_file("/models/m.onnx", b"weights")
    source = f"memory://models/m.onnx#sha256={sha256(b'weights')}"
    assert local_file(source, tmp_path, quiet).read_bytes() == b"weights"
    with pytest.raises(SourceError, match=r"memory://models/n.onnx is not there"):
        local_file(f"memory://models/n.onnx#sha256={sha256(b'n')}", tmp_path, quiet)


def test_an_object_of_no_bytes_is_fetched_too(tmp_path, store):
    store.pipe_file("/models/empty", b"")
    source = f"memory://models/empty#sha256={sha256(b'')}"
    assert local_file(source, tmp_path, quiet).read_bytes() == b""


def test_too_many_files_are_refused(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(fetch, "MAX_FILES", 3)
    with pytest.raises(SourceError, match="has 4 files, more than 3; give an archive"):
        local_file(f"memory://models/minilm#sha256={'0' * 64}", tmp_path / "cache", quiet)


def zipped(*names: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as made:
        for name in names:
            made.writestr(name, name)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("names", "inside", "found"),
    [
        (("a", "b"), "", "m"),
        (("a", "b"), "&inside=b", "b"),
        (("top/a", "top/b"), "", "top"),
        (("top/a", "top/b"), "&inside=b", "b"),
        (("top/a", "top/b"), "&inside=top/b", "b"),
        (("only.onnx",), "", "only.onnx"),
    ],
)
def test_an_archive_is_unpacked(tmp_path, names, inside, found):
    with serving(FileServer(zipped(*names))) as server:
        source = f"{server.url('m.zip')}#sha256={sha256(server.content)}{inside}"
        path = local_file(source, tmp_path, quiet)
        assert path.name == found
        assert local_file(source, tmp_path, quiet) == path
        assert len(server.asked) == 1


def test_what_an_archive_does_not_have_is_named(tmp_path):
    with serving(FileServer(zipped("top/a", "top/b"))) as server:
        source = f"{server.url('m.zip')}#sha256={sha256(server.content)}&inside=c"
        with pytest.raises(SourceError, match=r"m\.zip has no c; it has a, b"):
            local_file(source, tmp_path, quiet)


def test_a_file_url_is_that_file_and_its_digest_is_compared(tmp_path):
    file = tmp_path / "a model.onnx"
    file.write_bytes(b"weights")
    url = f"file://{tmp_path}/a%20model.onnx"
    assert local_file(url, tmp_path, quiet) == file
    assert local_file(f"{url}#sha256={sha256(b'weights')}", tmp_path, quiet) == file
    with pytest.raises(SourceError, match=r"a%20model.onnx: its SHA-256 is .*, not 0000"):
        local_file(f"{url}#sha256={'0' * 64}", tmp_path, quiet)
    with pytest.raises(SourceError, match=r"no file or folder .*gone"):
        local_file(f"file://{tmp_path}/gone", tmp_path, quiet)


def test_a_model_gets_local_paths_and_keeps_its_version(tmp_path, store):
    store.pipe_file("/m/m.onnx", b"weights")
    store.pipe_file("/m/rows.npz", b"rows")
    weights, rows = sha256(b"weights"), sha256(b"rows")
    model = ModelSettings.model_validate(
        {
            "runtime": "onnxruntime",
            "source": f"memory://m/m.onnx#sha256={weights}",
            "accept": {
                "artifact": "models/plain.onnx",
                "samples_file": f"memory://m/rows.npz#sha256={rows}",
            },
            "options": {"calibration": f"memory://m/rows.npz#sha256={rows}"},
        }
    )
    local = local_model(model, tmp_path, quiet)
    assert local.source is not None
    assert Path(local.source).read_bytes() == b"weights"
    assert local.accept.artifact == "models/plain.onnx"
    assert Path(str(local.accept.samples_file)).read_bytes() == b"rows"
    assert local.options == model.options  # they are part of the version
    settings = describe.runtime_settings("m", local, tmp_path, quiet)
    assert settings.source == Path(local.source)
    assert Path(settings.options["calibration"]).read_bytes() == b"rows"


def test_a_model_without_urls_is_left_as_it_is(tmp_path):
    model = ModelSettings.model_validate({"runtime": "openvino", "source": "models/m.onnx"})
    assert local_model(model, tmp_path, quiet) is model
