"""An object store that fails is gone on with; one that says no is believed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import fsspec
import pytest

from deployments.replica.artifacts import fetch
from deployments.replica.artifacts.fetch import SourceFetch
from deployments.settings import remote_source
from deployments.settings.remote_source import SourceError

CONTENT = bytes(range(256)) * 400
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def store(monkeypatch):
    """fsspec's store in memory, with one object, read in pieces of 10,000 bytes."""
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/models/m.onnx", CONTENT)
    monkeypatch.setattr(fetch, "_PIECE_BYTES", 10_000)
    yield memory
    memory.rm_file("/models/m.onnx")


def fetched(cache: Path, waited: list[float]) -> bytes:
    remote = remote_source.parse(f"memory://models/m.onnx#sha256={DIGEST}")
    with SourceFetch(remote, cache, lambda _: None, sleep=waited.append).verified() as path:
        return path.read_bytes()


class Failing:
    """An open file whose third read fails, each time it is opened anew."""

    def __init__(self, file: Any, fault: Exception) -> None:
        self._file = file
        self._fault = fault
        self._reads = 0

    def read(self, size: int) -> bytes:
        self._reads += 1
        if self._reads == 3:
            raise self._fault
        return bytes(self._file.read(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("fault", [TimeoutError("slow"), ConnectionError("cut"), ValueError("odd")])
def test_reads_that_fail_are_gone_on_from_where_they_were(store, tmp_path, monkeypatch, fault):
    opened, read = 0, type(store).open

    def failing(self: Any, path: str, *args: Any, **kwargs: Any) -> Failing:
        nonlocal opened
        opened += 1
        return Failing(read(self, path, *args, **kwargs), fault)

    monkeypatch.setattr(type(store), "open", failing)
    waited: list[float] = []
    assert fetched(tmp_path, waited) == CONTENT
    assert (opened, waited) == (6, [1.0] * 5)  # 102,400 bytes, 20,000 each time


def test_a_store_that_stays_away_comes_to_an_end(store, tmp_path, monkeypatch):
    def away(*_: object, **__: object) -> None:
        raise OSError("the store is away")

    monkeypatch.setattr(type(store), "info", away)
    monkeypatch.setattr(type(store), "isfile", away)
    waited: list[float] = []
    with pytest.raises(SourceError, match=r"memory://models/m.onnx cannot be fetched: OSError"):
        fetched(tmp_path, waited)
    assert waited == list(fetch.PAUSES_S)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (PermissionError("Access Denied"), "may not be read with the credentials that this node"),
        (FileNotFoundError("gone"), "is not there"),
        (ImportError("Install it"), "Install it"),
    ],
)
def test_a_no_is_believed_at_once(store, tmp_path, monkeypatch, fault, said):
    def refuse(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(type(store), "open", refuse)
    waited: list[float] = []
    with pytest.raises(SourceError, match=said):
        fetched(tmp_path, waited)
    assert waited == []


def test_names_that_lead_out_of_the_folder_are_refused(store, tmp_path, monkeypatch):
    found = {"/models/../../out": {"size": 1}, "/models/a": {"size": 1}}
    monkeypatch.setattr(type(store), "find", lambda *_, **__: found)
    remote = remote_source.parse(f"memory://models/#sha256={DIGEST}")
    with (
        pytest.raises(SourceError, match="leads out of it"),
        SourceFetch(remote, tmp_path / "cache", lambda _: None).verified(),
    ):
        pass
    assert not list(tmp_path.rglob("out"))
