"""A starting replica has its model's files here before it loads, and says what it waits for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from deployments.contract.registry import PROGRESS
from deployments.replica import model_replica
from deployments.replica.model_replica import ModelReplica
from deployments.settings.remote_source import SourceError

DIGEST = hashlib.sha256(b"weights").hexdigest()
Told = list[tuple[str, float, str]]


class Sent:
    """What a call to the registry returns, which may be awaited or not."""

    def __await__(self) -> Iterator[None]:
        return iter(())


class Replica(ModelReplica):
    """Whose end nobody calls."""

    def __del__(self) -> None: ...

    async def _load(self, cache_dir: Path, digest: str) -> tuple[Any, bytes]:
        assert self._settings.source is not None
        return Path(self._settings.source), b""


@pytest.fixture
def told(monkeypatch, tmp_path) -> Iterator[Told]:
    """What the registry would hear; a store in memory has memory://models/m.onnx."""
    heard: Told = []

    class Registry:
        class report:
            @staticmethod
            def remote(said: bytes) -> Any:
                progress = PROGRESS.decode(said)
                heard.append((progress.phase, progress.fraction, progress.detail))
                return Sent()

    replica_id = SimpleNamespace(unique_id="r1")
    context = SimpleNamespace(replica_id=replica_id, world_size=1)
    monkeypatch.setattr(model_replica.serve, "get_replica_context", lambda: context)
    monkeypatch.setattr(model_replica, "registry", Registry)
    monkeypatch.setattr(model_replica, "keep_replica_calls_local", lambda: None)
    monkeypatch.setattr(model_replica.logs, "configure_from_environment", lambda model: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fsspec.filesystem("memory").pipe_file("/models/m.onnx", b"weights")
    yield heard
    fsspec.filesystem("memory").rm_file("/models/m.onnx")


async def started(source: str, **more: Any) -> Replica:
    replica = Replica()
    settings = {"runtime": "onnxruntime", "source": source, **more}
    await replica._start_up({"name": "m", "settings": settings, "channel": {}})
    return replica


async def test_a_remote_source_is_here_before_the_model_is_loaded(told, tmp_path):
    replica = await started(f"memory://models/m.onnx#sha256={DIGEST}")
    path: Any = replica._description
    assert path.read_bytes() == b"weights"
    assert path.is_relative_to(tmp_path)
    assert {phase for phase, _, _ in told} == {"starting", "staging"}
    assert [share for _, share, _ in told][-1] == 1.0


async def test_what_cannot_be_fetched_is_told_in_a_sentence(told, caplog):
    with pytest.raises(SourceError):
        await started(f"memory://models/m.onnx#sha256={'0' * 64}")
    phase, _, detail = told[-1]
    assert phase == "failed"
    assert detail.startswith(f"memory://models/m.onnx: its SHA-256 is {DIGEST}, not 000")
    assert "Traceback" not in caplog.text


async def test_a_replica_of_an_optional_model_ends_late_and_says_why(told, caplog, monkeypatch):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(model_replica.asyncio, "sleep", sleep)
    with pytest.raises(SourceError):
        await started(f"memory://models/m.onnx#sha256={'0' * 64}", optional=True)
    assert slept == [600.0]
    assert "it is optional: nothing waits for it" in caplog.text
