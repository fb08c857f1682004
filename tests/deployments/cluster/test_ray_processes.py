"""Which processes of Ray's own are missed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deployments.cluster.ray_processes import RayProcesses


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """By the names that the kernel knows them by."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    started = {}
    for name in ("gcs_server", "raylet", "other"):
        shutil.copy(sleep, tmp_path / name)
        started[name] = subprocess.Popen([str(tmp_path / name), "600"])
    yield started
    for each in started.values():
        each.kill()
        each.wait()


@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_one_that_ends_is_named_before_anybody_waits_for_it(processes, name):
    watched = RayProcesses([psutil.Process(each.pid) for each in processes.values()])
    assert watched.ended() is None
    processes[name].kill()
    os.waitid(os.P_PID, processes[name].pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    assert f"({name}), process {processes[name].pid}" in watched.ended()


def test_others_may_end(processes):
    watched = RayProcesses([psutil.Process(each.pid) for each in processes.values()])
    processes["other"].kill()
    processes["other"].wait()
    assert watched.ended() is None
