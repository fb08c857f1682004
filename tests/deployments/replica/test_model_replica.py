"""A replica's start: its phases, its files, who hears of it, and for whom it waits."""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import psutil
import pytest

from autoscaling.types import StartReading, State
from deployments.contract.codec import SPOKEN
from deployments.contract.description import ModelDescription
from deployments.contract.registry import PROGRESS, ReplicaProgress
from deployments.contract.scaling.messages import START
from deployments.process import actors
from deployments.process.loop_watch import HUNG_EXIT_CODE
from deployments.process.replica_directory import RunningReplica
from deployments.replica import model_replica
from deployments.replica.artifacts.local_model import LocalAdapters
from deployments.replica.model_replica import (
    ModelReplica,
    follow_adapters,
    tell_autoscaler,
    together,
)
from deployments.replica.startup import StartupProgress, process_age_s, took
from deployments.settings.model import ModelSettings
from deployments.settings.remote_source import SourceError
from runtimes.errors import LoadError
from tests.runtimes.adapter_folders import write_adapter


async def test_adapters_follow_what_operators_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(model_replica, "_ADAPTERS_S", 0.001)
    write_adapter(tmp_path / "new", 16)
    said: list[Any] = [{}, {"new": str(tmp_path / "new"), "sql": None}, OSError("away"), {}]
    local, seen, enough = LocalAdapters(None, 16, tmp_path), [], threading.Event()

    def fetch() -> dict[str, str | None]:
        seen.append(dict(table))
        if len(seen) == 5:
            enough.set()
        found = said[min(len(seen), len(said)) - 1]
        if isinstance(found, Exception):
            raise found
        return dict(found)

    declared = {"law": str(tmp_path / "law"), "sql": str(tmp_path / "sql")}
    table = local.made(declared)
    follows = asyncio.create_task(follow_adapters(table, declared, local, fetch))
    assert await asyncio.to_thread(enough.wait, 5)
    follows.cancel()
    assert [sorted(each) for each in seen[:5]] == [
        ["law", "sql"], ["law", "sql"], ["law", "new"], ["law", "new"], ["law", "sql"],
    ]  # fmt: skip
    folder, digest = seen[2]["new"].files()
    assert (folder, len(digest)) == (tmp_path / "new", 64)
    write_adapter(tmp_path / "new", 16, seed=2)
    assert seen[2]["new"].files()[1] != digest, "the digest is of what is there now"
    write_adapter(tmp_path / "new", 16, rank=32)
    with pytest.raises(LoadError, match="rank 32, above 16"):
        seen[2]["new"].files()


class Told(list[ReplicaProgress]):
    def __init__(self, before_s: float = 0.0) -> None:
        self.now = 100.0
        self.progress = StartupProgress("m", "r", self.report, before_s, lambda: self.now)

    async def report(self, progress: ReplicaProgress) -> None:
        self.append(progress)

    async def tell(self, phase: str, at: float) -> None:
        self.now = 100.0 + at
        await self.progress.report(phase, 0.5)


async def test_each_phase_has_its_seconds_once_it_is_over() -> None:
    told = Told(before_s=4.0)
    for phase, at in (("starting", 0.0), ("staging", 1.0), ("staging", 2.0), ("warming", 5.0)):
        await told.tell(phase, at)
    assert told[-1].spent == (("process", 4.0), ("starting", 1.0), ("staging", 4.0))
    assert told[-1].passed == ("starting", "staging")
    assert [each.phase for each in told] == ["starting", "staging", "staging", "warming"]
    assert took(told[-1].spent) == "process 4.0 s, starting 1.0 s, staging 4.0 s"


async def test_a_phase_that_comes_back_adds_to_its_time() -> None:
    told = Told()
    for phase, at in (("staging", 0.0), ("compiling", 1.0), ("staging", 3.0), ("ready", 4.0)):
        await told.tell(phase, at)
    assert told[-1].spent == (("staging", 2.0), ("compiling", 2.0))


async def test_a_failure_says_why_in_a_backends_own_words_or_with_what_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told()
    await told.progress.failed(LoadError("no such file"))
    await told.progress.failed(KeyError("x"))
    assert [each.detail for each in told] == ["no such file", "KeyError: 'x'"]
    assert {each.phase for each in told} == {"failed"}
    assert caplog.messages == ["cannot start: no such file", "cannot start: KeyError: 'x'"]


@pytest.mark.parametrize(("made_ago_s", "age_s"), [(5.0, 5.0), (59.0, 59.0), (600.0, 0.0)])
def test_a_process_that_was_there_long_before_was_not_made_for_the_replica(
    monkeypatch: pytest.MonkeyPatch, made_ago_s: float, age_s: float
) -> None:
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: time.time() - made_ago_s)
    assert process_age_s() == pytest.approx(age_s, abs=1.0)


class Actor:
    def __init__(self) -> None:
        self.told: list[StartReading] = []
        self.started = self

    def remote(self, start: bytes) -> None:
        self.told.append(START.decode(start))


@pytest.mark.parametrize(("staging_s", "state"), [(0.2, State.STAGED), (4.0, State.COLD)])
def test_a_start_says_its_phases_and_where_it_began(monkeypatch, staging_s, state) -> None:
    actor = Actor()
    monkeypatch.setattr(actors, "running_autoscaler", lambda: actor)
    spent = (("process", 2.0), ("staging", staging_s), ("warming", 1.0))
    tell_autoscaler("m", "gpu", spent)
    assert actor.told == [StartReading("m", "gpu", state, 3.0 + staging_s, spent)]


@pytest.mark.parametrize("fault", [ValueError("no such actor"), RuntimeError("no control store")])
def test_nobody_that_hears_it_is_no_fault_of_the_replica(monkeypatch, fault) -> None:
    def nobody() -> Any:
        raise fault

    monkeypatch.setattr(actors, "running_autoscaler", nobody)
    tell_autoscaler("m", "", ())


class Failing(ModelReplica):
    """A replica whose model cannot start, as far as that is told. Only a test calls its end."""

    def __init__(self) -> None:
        self._name, self._settings = "m", ModelSettings(runtime="synthetic")

    def __del__(self) -> None: ...


def test_a_replica_that_ends_says_why_and_takes_its_engine_along(monkeypatch, caplog) -> None:
    engine = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
    engine.start()
    codes: list[int] = []
    monkeypatch.setattr("deployments.replica.model_replica.os._exit", codes.append)
    Failing()._end_process("the engine died")
    engine.join(10)
    assert (engine.exitcode, codes) == (-signal.SIGKILL, [HUNG_EXIT_CODE])
    assert "the engine died; the replica ends" in caplog.text


@pytest.mark.parametrize(("group", "more"), [("", {}), ("gpu", {"group": "gpu"})])
def test_a_replica_records_the_versions_that_it_speaks_beside_its_address(
    group: str, more: dict[str, str], description: Callable[..., ModelDescription]
) -> None:
    replica: Any = Failing()
    replica._description, replica._group = description(), group
    replica._server = SimpleNamespace(address="h:1")
    said = replica.record_replica_metadata()
    known = {"version": "1", "digest": "d", "channel": "h:1", "channel_versions": "4,3"}
    assert said == known | more
    assert RunningReplica("r", tuple(said.items())).spoken_versions() == set(SPOKEN)
    assert RunningReplica("r", (("channel", "h:1"),)).spoken_versions() == {3}


DIGEST = hashlib.sha256(b"weights").hexdigest()
Heard = list[tuple[str, float, str]]


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
def told(monkeypatch, tmp_path) -> Iterator[Heard]:
    """What the registry would hear; a store in memory has memory://models/m.onnx."""
    heard: Heard = []

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
    monkeypatch.setattr(model_replica.log_choice, "follow", lambda model: None)
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


class Registry:
    """Says how many load, one answer after another; the last one for ever. None: nothing."""

    def __init__(self, *answers: int | None) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, str]] = []
        self.loading_beside = self

    def remote(self, model: str, digest: str) -> asyncio.Future[int]:
        self.asked.append((model, digest))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        told = asyncio.get_running_loop().create_future()
        if answer is not None:
            told.set_result(answer)
        return told


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch):
    """Makes the registry that replicas find."""
    monkeypatch.setattr(model_replica, "_LOOKS_S", 0.0)

    def make(*answers: int | None) -> Registry:
        made = Registry(*answers)
        monkeypatch.setattr(model_replica, "registry", lambda: made)
        return made

    return make


async def test_it_is_ready_when_no_other_loads(of):
    registry = of(2, 1, 0)
    await together("m", "d", 60.0)
    assert registry.asked == [("m", "d")] * 3


async def test_it_waits_no_longer_than_it_took_itself(of):
    of(1)
    async with asyncio.timeout(10):
        await together("m", "d", 0.01)


async def test_it_does_not_wait_for_a_registry_that_hangs(of, monkeypatch):
    monkeypatch.setattr(model_replica, "_ANSWER_S", 0.01)
    registry = of(None)
    async with asyncio.timeout(10):
        await together("m", "d", 60.0)
    assert len(registry.asked) == 1


async def test_without_a_registry_it_is_ready(monkeypatch):
    def nobody() -> None:
        raise ValueError("no actor of that name")

    monkeypatch.setattr(model_replica, "registry", nobody)
    await together("m", "d", 60.0)
