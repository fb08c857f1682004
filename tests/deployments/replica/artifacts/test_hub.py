"""`hf:ORG/NAME@COMMIT` by the hub's own library, against a hub of this test's on 127.0.0.1."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import numpy as np
import onnx
import pytest
from huggingface_hub import constants
from safetensors.numpy import save

from deployments.replica.artifacts.local_model import local_file
from deployments.replica.describe import tokenizer_bytes
from deployments.settings.remote_source import SourceError
from deployments.settings_files import hub, sources
from runtimes import source

REPO = "acme/tiny"
COMMIT = "5c38ec7c405ec4b44b94cc5a9bb96e735b38267a"
SOURCE = f"hf:{REPO}@{COMMIT}"
FILES = {
    "config.json": b'{"model_type": "bert"}',
    "tokenizer.json": b"{}",
    "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}',
    "model.safetensors": save({"w": np.zeros(750_000, np.float32)}),
    "pytorch_model.bin": b"a pickle",
    "onnx/model.onnx": onnx.helper.make_model(
        onnx.helper.make_graph([], "g", [], []), producer_name="test"
    ).SerializeToString(),
    "onnx/model.onnx_data": b"its weights",
    "onnx/config.json": b"{}",
    "modeling_tiny.py": b"print('code')",
}


class Hub(ThreadingHTTPServer):
    """Answers as the hub does for one model, `files`; large files have an LFS digest."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files = dict(FILES)
        self.refused: tuple[int, str] | None = None  # a status, and the hub's word for why
        self.asked: list[str] = []  # method and path of each request
        self.tokens: set[str | None] = set()  # of requests for the model
        self.url = f"http://127.0.0.1:{self.server_port}"

    def etag(self, name: str) -> str:
        content = self.files[name]
        if name.endswith(".safetensors"):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        if REPO in path:
            self.server.tokens.add(self.headers.get("authorization"))
        if self.server.refused:
            status, word = self.server.refused
            return self._send(b"", status=status, **{"X-Error-Code": word})
        if path == f"/api/models/{REPO}/tree/{COMMIT}":
            return self._send(
                json.dumps([self._entry(name) for name in self.server.files]).encode()
            )
        if path in (f"/api/models/{REPO}", f"/api/models/{REPO}/revision/v1"):
            return self._send(json.dumps({"id": REPO, "sha": COMMIT}).encode())
        name = path.removeprefix(f"/{REPO}/resolve/{COMMIT}/")
        if name not in self.server.files:
            code = "RevisionNotFound" if "/tree/" in path else "EntryNotFound"
            return self._send(b"", status=404, **{"X-Error-Code": code})
        headers = {"ETag": f'"{self.server.etag(name)}"', "X-Repo-Commit": COMMIT}
        return self._send(self.server.files[name], **headers)

    def _entry(self, name: str) -> dict[str, object]:
        size = len(self.server.files[name])
        entry = {"type": "file", "path": name, "size": size, "oid": self.server.etag(name)}
        if name.endswith(".safetensors"):
            entry["lfs"] = {"oid": self.server.etag(name), "size": size, "pointerSize": 130}
        return entry

    def _send(self, content: bytes, *, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


def at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT does, which the library reads once."""
    paths = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + paths)
    monkeypatch.setattr(constants, "ENDPOINT", url)


@pytest.fixture
def stub(tmp_path, monkeypatch) -> Iterator[Hub]:
    server = Hub()
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    at(server.url, monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    yield server
    server.shutdown()
    server.server_close()


def fetch(source: str, tmp_path: Path, shares: list[float] | None = None) -> Path:
    heard = [] if shares is None else shares
    return local_file(source, tmp_path / "cache", lambda _, share: heard.append(share))


def names(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def test_a_folder_is_fetched_without_pickles_and_code_and_says_how_far_it_is(stub, tmp_path):
    shares: list[float] = []
    place = fetch(SOURCE, tmp_path, shares)
    folder = {"config.json", "tokenizer.json", "1_Pooling/config.json", "model.safetensors"}
    assert names(place) == folder
    assert (place / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_the_second_time_nothing_is_asked(stub, tmp_path):
    place = fetch(SOURCE, tmp_path)
    stub.asked.clear()
    assert fetch(SOURCE, tmp_path) == place
    assert stub.asked == []


def test_what_is_in_the_cache_serves_when_the_hub_is_away(stub, tmp_path, monkeypatch):
    place = fetch(SOURCE, tmp_path)
    at("http://127.0.0.1:9", monkeypatch)
    assert fetch(SOURCE, tmp_path) == place
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch(SOURCE, tmp_path) == place
    # Without the commit's list of files nobody knows whether all are there.
    for tree in (tmp_path / "hub").rglob("trees/*.json"):
        tree.unlink()
    with pytest.raises(SourceError, match=r"not known to be complete .* HF_HUB_OFFLINE is set"):
        fetch(SOURCE, tmp_path)


def test_content_that_the_cache_shares_by_another_digest_is_taken(stub, tmp_path):
    """As it is with the hub's newer transfer: blobs/ETAG is a link to what several models share."""
    weights = fetch(SOURCE, tmp_path) / "model.safetensors"
    blob = weights.parent / os.readlink(weights)
    shared = tmp_path / "hub" / "blobs" / "ab" / ("0" * 64)
    shared.parent.mkdir(parents=True)
    blob.resolve().rename(shared)
    blob.symlink_to(shared)
    (weights.parent / "model.safetensors.index.json").symlink_to(
        os.path.relpath(blob.with_name("index"), weights.parent)
    )
    blob.with_name("index").write_text(json.dumps({"weight_map": {"w": "model.safetensors"}}))
    assert fetch(SOURCE, tmp_path) == weights.parent
    index = weights.with_name("model.safetensors.index.json")
    assert source._beside(index, "model.safetensors") == weights


def test_external_data_of_any_name_is_fetched(stub, tmp_path):
    array = np.arange(1024, dtype=np.float32)
    weights = onnx.numpy_helper.from_array(array, "w")
    graph = onnx.helper.make_graph([], "g", [], [], [weights])
    onnx.save_model(
        onnx.helper.make_model(graph), tmp_path / "model.onnx", save_as_external_data=True,
        location="weights.raw", size_threshold=16,
    )  # fmt: skip
    for name in ("model.onnx", "weights.raw"):
        stub.files[f"onnx/[1]/{name}"] = (tmp_path / name).read_bytes()
    file = fetch(f"{SOURCE}#inside=onnx/[1]/model.onnx", tmp_path)
    assert (file.parent / "weights.raw").read_bytes() == array.tobytes()


def test_what_a_killed_download_left_is_removed(stub, tmp_path):
    blobs = tmp_path / "hub" / "models--acme--tiny" / "blobs"
    blobs.mkdir(parents=True)
    for name, age_s in (("old", 3600), ("new", 0)):
        part = blobs / f"{name}.incomplete"
        part.write_bytes(b"w" * 10)
        os.utime(part, (time.time() - age_s,) * 2)
    fetch(SOURCE, tmp_path)
    assert [each.name for each in blobs.glob("*.incomplete")] == ["new.incomplete"]


def test_a_file_inside_comes_with_its_data_and_what_lies_beside_it(stub, tmp_path):
    file = fetch(f"{SOURCE}#inside=onnx/model.onnx", tmp_path)
    assert file.read_bytes() == FILES["onnx/model.onnx"]
    assert names(file.parent) == {"model.onnx", "model.onnx_data", "config.json"}
    assert tokenizer_bytes(file) == FILES["tokenizer.json"]
    assert "model.safetensors" not in names(file.parent.parent)


def test_a_folder_inside_comes_alone(stub, tmp_path):
    stub.files["small/model.safetensors"] = b"less"
    folder = fetch(f"{SOURCE}#inside=small", tmp_path)
    assert names(folder) == {"model.safetensors"}
    assert "model.safetensors" not in names(folder.parent)


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        ((401, "RepoNotFound"), "does not exist on the hub, or is private: then set HF_TOKEN"),
        ((403, "GatedRepo"), "is gated: accept its terms on its page, and set HF_TOKEN"),
        ((404, "RevisionNotFound"), "the model has no such commit"),
    ],
)
def test_a_refusal_of_the_hub_says_what_to_do(stub, tmp_path, refused, words):
    stub.refused = refused
    with pytest.raises(SourceError, match=rf"^{SOURCE} .*{words}"):
        fetch(SOURCE, tmp_path)


def test_a_hub_that_is_away_and_an_offline_node_are_told_apart(stub, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)  # between tries
    at("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(SourceError, match="the hub cannot be reached"):
        fetch(SOURCE, tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(SourceError, match="HF_HUB_OFFLINE is set"):
        fetch(SOURCE, tmp_path)


def test_pickled_weights_are_refused_before_they_are_fetched(stub, tmp_path):
    del stub.files["model.safetensors"]
    with pytest.raises(SourceError, match=r"holds no \*\.safetensors"):
        fetch(SOURCE, tmp_path)
    assert not any("resolve" in each and each.startswith("GET") for each in stub.asked)


def test_a_file_that_is_not_there_is_named(stub, tmp_path):
    with pytest.raises(SourceError, match=r"#inside=onnx/other\.onnx holds no such file"):
        fetch(f"{SOURCE}#inside=onnx/other.onnx", tmp_path)


def test_what_does_not_fit_is_refused_before_it_is_fetched(stub, tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "FREE_BYTES", 1 << 60)
    with pytest.raises(SourceError, match=r"takes 2 MiB more, and .* has 0 MiB free"):
        fetch(SOURCE, tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_file_of_the_cache_is_named(stub, tmp_path, name):
    place = fetch(SOURCE, tmp_path)
    (place / name).resolve().write_bytes(b"something else")
    with pytest.raises(SourceError, match=rf"{name} is damaged, its digest differs: remove "):
        fetch(SOURCE, tmp_path)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (f"hf:{REPO}", f"names no commit: .* must be {SOURCE}, which main is now"),
        (f"hf:{REPO}@v1", f"names 'v1', which is no commit: .* {SOURCE}, which v1 is now"),
        (f"hf:{REPO}@v2", f"names 'v2', which is no commit: .* hf:{REPO}@COMMIT, of 40 digits"),
        ("hf:a/b/c@main", "must be hf:ORG/NAME@COMMIT"),
        (f"{SOURCE}#inside=../x", "which leads out of it"),
        (f"{SOURCE}#sha256={'0' * 64}", "sha256 must be left out"),
        (f"{SOURCE}:module:Class", "must be hf:ORG/NAME@COMMIT"),
    ],
)
def test_the_check_of_a_file_says_what_would_be_right(stub, written, words):
    with pytest.raises(AssertionError, match=words):
        assert sources.check(written, here=True) is None
    assert sources.check(SOURCE, here=True) is None


def test_a_name_of_the_hub_that_is_given_as_a_path_is_told_so(tmp_path):
    with pytest.raises(SourceError, match="would be hf:acme/tiny@COMMIT"):
        sources.resolve(str(tmp_path / REPO))
    with pytest.raises(SourceError, match=r"no file or folder '[^']*/tiny'; .* holds nothing$"):
        sources.resolve(str(tmp_path / "tiny"))


def test_the_command_line_stages_a_model_of_the_hub(stub, tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text(
        f"models:\n  tiny:\n    runtime: onnxruntime\n    source: {SOURCE}\n    task: embed\n"
    )
    environ = {
        **os.environ,
        "HF_ENDPOINT": stub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": "hf_secret",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-m", "deployments.cli", "stage", str(file)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "tiny: fetched" in done.stdout
    assert stub.tokens == {"Bearer hf_secret"}
