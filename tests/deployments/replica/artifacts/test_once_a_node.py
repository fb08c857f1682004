"""Replicas that start at once on one node fetch once; one that is killed leaves nothing stuck."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from file_server import FileServer, serving

from deployments.replica.artifacts.local_model import local_file

pytestmark = pytest.mark.slow  # processes of their own
ROOT = Path(__file__).parents[4]
CONTENT = os.urandom(1 << 20)
CODE = (
    "import sys, pathlib; from deployments.replica.artifacts.local_model import local_file; "
    "print('begun', flush=True); "
    "print(local_file(sys.argv[1], pathlib.Path(sys.argv[2]), lambda *_: None))"
)


@pytest.fixture
def start(tmp_path):
    """Starts processes that each make a replica's call; they are gone at the end."""
    started: list[subprocess.Popen[str]] = []

    def begin(source: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CODE, source, str(tmp_path)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def until(true: Callable[[], bool]) -> None:
    """Looks every hundredth of a second, for a minute at most: another process is waited for."""
    for _ in range(6000):
        if true():
            return
        time.sleep(0.01)
    raise TimeoutError


def source_of(server: FileServer) -> str:
    return f"{server.url()}#sha256={hashlib.sha256(server.content).hexdigest()}"


def test_processes_that_start_at_once_fetch_once(tmp_path, start):
    go_on = threading.Event()
    with serving(FileServer(CONTENT, before_body=lambda: go_on.wait(60))) as server:
        processes = [start(source_of(server)) for _ in range(3)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
        go_on.set()
        paths = {process.communicate(timeout=60)[0].strip() for process in processes}
        assert len(server.asked) == 1
    (path,) = paths
    assert Path(path).read_bytes() == CONTENT


def test_a_killed_process_frees_the_others_which_go_on_from_there(tmp_path, start):
    cut, over = threading.Event(), threading.Event()

    def hold() -> None:
        cut.set()
        over.wait(60)

    with serving(FileServer(CONTENT, cuts=[600_000], at_cut=hold)) as server:
        process = start(source_of(server))
        assert cut.wait(60)
        waits = start(source_of(server))
        assert waits.stdout is not None
        assert waits.stdout.readline() == "begun\n"
        until(lambda: any(file.stat().st_size for file in tmp_path.glob("downloads/*/*")))
        process.kill()
        process.wait()
        path = Path(waits.communicate(timeout=60)[0].strip())
        over.set()
        assert path.read_bytes() == CONTENT
        assert server.asked[0] == ""
        assert len(server.asked) == 2
        began = int(server.asked[1].removeprefix("bytes=").rstrip("-") or 0)
        assert 0 < began <= 600_000
    assert not list((tmp_path / "downloads").iterdir())
    assert [each for each in (tmp_path / "staged").iterdir() if each.is_dir()] == [path.parent]
    assert local_file(source_of(server), tmp_path, lambda *_: None) == path
