"""Which processes of Ray's own are missed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deployments.control.supervisor import ray_processes


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


ADDRESSES = {"gcs_server": "127.0.0.1:1", "raylet": "127.0.0.1:2"}


def among(started: dict[str, subprocess.Popen[bytes]]) -> list[ray_processes.RayProcess]:
    return ray_processes.among([psutil.Process(p.pid) for p in started.values()], ADDRESSES)


@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_one_that_ends_is_named_before_anybody_waits_for_it(processes, name):
    watched = among(processes)
    assert ray_processes.ended(watched) is None
    processes[name].kill()
    os.waitid(os.P_PID, processes[name].pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    lost = ray_processes.ended(watched)
    assert f"({name}), process {processes[name].pid}" in str(lost)
    assert lost.address == ADDRESSES[name]


def test_others_may_end(processes):
    watched = among(processes)
    processes["other"].kill()
    processes["other"].wait()
    assert ray_processes.ended(watched) is None


def test_another_process_watches_by_what_an_event_says(processes):
    watched = among(processes)
    told = json.loads(json.dumps([each.event() for each in watched]))
    assert [ray_processes.of_event(each) for each in told] == watched
