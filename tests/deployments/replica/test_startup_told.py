"""What the autoscaler hears of a replica's start, and what a replica's end takes along."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from autoscaling.types import StartReading, State
from deployments.contract.description import ModelDescription
from deployments.contract.scaling.messages import START
from deployments.contract.version import SPOKEN
from deployments.process import actors
from deployments.process.loop_watch import HUNG_EXIT_CODE
from deployments.process.replica_directory import RunningReplica
from deployments.replica.model_replica import ModelReplica, tell_autoscaler
from deployments.settings.model import ModelSettings


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
