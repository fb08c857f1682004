"""What the host cannot end, the process that started it ends; and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deployments.control.supervisor import orphaned_processes, server_files, server_guard
from deployments.control.supervisor.ray_processes import RayProcess
from deployments.control.supervisor.server_files import ProcessMark, ServerState
from deployments.control.supervisor.server_guard import HOST_ENDS_S, ServerGuard

PORT = 1
SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for each in processes:
        each.kill()
        each.wait()


@pytest.fixture
def host(started, tmp_path, monkeypatch) -> subprocess.Popen[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(server_files, "run_folder", lambda port: tmp_path / f"run-{port}")
    return sleeping(started)


def sleeping(
    started: list[subprocess.Popen[str]], environ: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    started.append(subprocess.Popen(SLEEPS, env=os.environ | (environ or {}), text=True))
    return started[-1]


def guard_of(host: subprocess.Popen[str], answers: bool = True) -> tuple[ServerGuard, Clock]:
    clock = Clock()
    guard = ServerGuard(host, PORT, SAID.append, lambda *_: answers, clock)
    return guard, clock


SAID: list[str] = []


@pytest.fixture(autouse=True)
def said() -> list[str]:
    SAID.clear()
    return SAID


def part_of_ray(process: subprocess.Popen[str]) -> RayProcess:
    return RayProcess("control store (gcs_server)", "127.0.0.1:1", psutil.Process(process.pid))


# ---- a host that does not notice ----------------------------------------------------------------


def test_a_host_that_goes_on_after_a_part_of_ray_has_ended_is_killed(host, started, said):
    control_store = sleeping(started)
    parts = [part_of_ray(control_store)]
    guard, clock = guard_of(host)
    control_store.kill()
    control_store.wait()
    guard.check_host(parts)
    clock.now += HOST_ENDS_S
    guard.check_host(parts)
    assert host.poll() is None  # it may be ending
    clock.now += 0.1
    guard.check_host(parts)
    assert host.wait(10) == -9
    assert f"(gcs_server), process {control_store.pid}, has ended" in said[0]


def test_a_host_whose_ray_runs_is_left_alone(host, started, said):
    parts = [part_of_ray(sleeping(started))]
    guard, clock = guard_of(host)
    for _ in range(3):
        clock.now += HOST_ENDS_S + 1
        guard.check_host(parts)
    assert host.poll() is None
    assert not said


# ---- a part of Ray that hangs -------------------------------------------------------------------


def test_a_part_of_ray_that_hangs_is_killed(host, started, said, monkeypatch):
    monkeypatch.setattr(server_guard, "HANG_S", 0.0)
    monkeypatch.setattr(server_guard, "_CHECK_S", 0.0)
    raylet = sleeping(started)
    guard, _ = guard_of(host, answers=False)
    guard.watch([part_of_ray(raylet)])
    assert raylet.wait(10) == -9
    while not said:
        time.sleep(0.001)
    assert f"process {raylet.pid}, had not answered for" in said[0]


# ---- what a host left ---------------------------------------------------------------------------


def write_state(pid: int, folder: Path) -> str:
    server_id = uuid.uuid4().hex
    state = ServerState(PORT, ProcessMark.of(pid), "", "", "settings.yaml", 0.0, server_id)
    server_files.write(state, server_files.state_folder())
    return server_id


def test_what_a_killed_host_left_is_ended_and_told_to_everyone_who_asks(host, started, tmp_path):
    left = sleeping(started, {orphaned_processes.VARIABLE: write_state(host.pid, tmp_path)})
    host.kill()
    host.wait()
    guard, _ = guard_of(host)
    sentence = guard.clear()
    assert left.wait(10) == -15
    assert f"ended a process that a killed server left on port {PORT}" in sentence
    assert guard.clear() == sentence
    assert server_files.known(PORT, server_files.state_folder()) == []


def test_nothing_of_another_server_on_the_port_is_ended(host, started, tmp_path):
    other = sleeping(started)
    of_other = sleeping(started, {orphaned_processes.VARIABLE: write_state(other.pid, tmp_path)})
    other.kill()
    other.wait()
    host.kill()
    host.wait()
    guard, _ = guard_of(host)
    assert guard.clear() is None
    assert of_other.poll() is None


def test_what_does_not_end_is_said_with_what_to_do(host, tmp_path, monkeypatch):
    def never(server_id, *limit_s):
        raise TimeoutError("processes 7 of a killed server do not end")

    monkeypatch.setattr(orphaned_processes, "end", never)
    write_state(host.pid, tmp_path)
    host.kill()
    host.wait()
    guard, _ = guard_of(host)
    assert "processes 7 of a killed server do not end; `headrace stop --port 1`" in guard.clear()
