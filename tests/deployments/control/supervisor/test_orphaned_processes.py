"""What a killed server left is ended whole, and nothing that is not proved to be its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deployments.control.supervisor import orphaned_processes, server_files
from deployments.control.supervisor.server_files import ProcessMark, ServerState

pytestmark = pytest.mark.slow  # processes of their own

ID = uuid.uuid4().hex  # other runs of these tests have processes of their own
PORT = 8000
DEAD = ProcessMark(os.getpid(), 1.0)  # a pid that the system gave away again
SLEEPS = "import time; print('up', flush=True); time.sleep(600)"
IGNORES_TERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"
# Starts another when one is gone, as HAProxy's manager and a raylet do.
RESTARTS = f"""
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    subprocess.Popen([sys.executable, "-c", {SLEEPS!r}]).wait()
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process with a server's id in its environment."""
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str = SLEEPS, server_id: str = ID, *arguments: str) -> subprocess.Popen[bytes]:
        environ = os.environ | {orphaned_processes.VARIABLE: server_id}
        command = [sys.executable, "-c", code, *arguments]
        child = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE)
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        return child

    yield run
    for child in started:
        child.kill()
        child.communicate()
    assert orphaned_processes.find(ID) == []


def dead(server_id: str = ID) -> ServerState:
    return ServerState(PORT, DEAD, "", "", "settings.yaml", 0.0, server_id)


@pytest.fixture
def states(tmp_path, monkeypatch) -> Path:
    """The state folder of a server that was killed."""
    monkeypatch.setattr(server_files, "run_folder", lambda port: tmp_path / f"run-{port}")
    server_files.write(dead(), server_files.make_run_folder(PORT))
    server_files.write(dead(), tmp_path / "states")
    return tmp_path / "states"


def test_all_that_carry_the_id_are_ended_and_said_in_a_line(start, states):
    children = [start(), start()]
    name = psutil.Process(children[0].pid).name()  # this process may have renamed itself
    sentence = orphaned_processes.clear(dead(), states)
    assert [child.wait(10) for child in children] == [-15, -15]
    assert sentence == f"ended 2 processes that a killed server left on port {PORT}: 2 {name}"
    assert server_files.known(PORT, states) == []


def test_nothing_is_said_when_nothing_was_left(states):
    assert orphaned_processes.clear(dead(), states) is None
    assert server_files.known(PORT, states) == []


def test_others_are_not_touched_whatever_they_name(start, states):
    other = start(SLEEPS, "another", f"{server_files.run_folder(PORT)}/haproxy.cfg")
    none = start(SLEEPS, "")
    assert orphaned_processes.end(ID) == []
    assert orphaned_processes.end("") == []
    assert (other.poll(), none.poll()) == (None, None)


def test_one_that_ignores_the_request_is_killed(start):
    child = start(IGNORES_TERM)
    orphaned_processes.end(ID, term_s=0.05)
    assert child.wait(10) == -9


def test_what_is_started_again_meanwhile_is_ended_too(start):
    manager = start(RESTARTS)
    assert len(orphaned_processes.end(ID, term_s=0.3)) >= 2
    assert orphaned_processes.find(ID) == []
    assert manager.wait(10) == -9


def test_one_that_does_not_end_is_an_error_and_its_files_are_kept(start, states, monkeypatch):
    child = start()
    monkeypatch.setattr(psutil.Process, "terminate", lambda self: None)
    with pytest.raises(TimeoutError, match=f"processes {child.pid} of a killed server do not end"):
        orphaned_processes.end(ID, term_s=0.0, kill_s=-1.0)
    assert len(server_files.known(PORT, states)) == 1


def test_a_zombie_is_waited_for_by_nobody(start):
    child = start()
    child.kill()
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.001)
    assert orphaned_processes.find(ID) == []


def test_neither_this_process_nor_its_parents_are_met(start):
    """As seen by a process that carries the id itself, below another that does."""
    code = f"""
import sys
print("up", flush=True)
from deployments.control.supervisor import orphaned_processes
print([p.pid for p in orphaned_processes.find({ID!r})], flush=True)
"""
    parent = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {code!r}]))"
    child = start(parent)
    assert child.communicate(timeout=30)[0] == b"[]\n"
