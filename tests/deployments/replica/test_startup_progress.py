"""How long each phase of a start took, as the registry hears it."""

from __future__ import annotations

import time

import psutil
import pytest

from deployments.contract.registry import ReplicaProgress
from deployments.replica.startup import StartupProgress, process_age_s, took
from runtimes.errors import LoadError


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
