from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from typing import Any

import pytest

from deployments.control import manual_target
from deployments.control.manual_target import ManualTarget
from deployments.control.ray_jobs import JobFailed
from deployments.control.supervisor import orphaned_processes, server_files
from deployments.control.supervisor.server_files import NoServer
from deployments.tools import change
from deployments.tools.where import ServerRefused, Where

ID = uuid.uuid4().hex  # other runs of these tests have processes of their own
HERE = Where()
TARGET = ManualTarget("m", "gpu", 3)


@pytest.fixture
def asked(monkeypatch):
    """What the server of this machine is asked, which answers `answer`."""
    requests: list[dict[str, Any]] = []
    answer: dict[str, Any] = {}

    def ask(self, request, timeout_s=0.0):
        requests.append(request)
        return answer

    monkeypatch.setattr(Where, "ask", ask)
    return requests, answer


def test_who_aborts_hears_that_the_file_has_the_new_version_still(asked, capsys):
    assert change.abort("m", "a bad day", HERE) == 0
    assert asked[0] == [{"do": "abort", "model": "m", "reason": "a bad day"}]
    assert "a server that starts serves it at once" in capsys.readouterr().out


def test_back_says_what_restarts_and_how_far_it_still_goes(asked, capsys):
    asked[1].update(left=2, reasons=["m: its source changed"])
    assert change.back("m", HERE) == 0
    first, reason = capsys.readouterr().out.splitlines()
    assert first == "m: the previous version runs again; 2 earlier ones are still known"
    assert reason == "  m: its source changed"


class Jobs:
    """Ray's jobs; what it was told, and what the job prints."""

    def __init__(self, output: str) -> None:
        self.output = output
        self.commands: list[str] = []

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, command: str, timeout_s: float) -> str:
        self.commands.append(command)
        return self.output


def printed(answer: dict[str, Any]) -> str:
    return f"some warning\n{manual_target.MARK}{json.dumps(answer)}\n"


def test_a_cluster_is_told_by_a_job(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    jobs = Jobs(printed({"model": "m", "group": "gpu", "replicas": 3}))
    monkeypatch.setattr(change, "jobs_of", lambda address: jobs)
    assert change.scale(TARGET, Where(address="http://head")) == 0
    (command,) = jobs.commands
    assert command.startswith("python -m deployments.control.manual_target '{")
    assert '"replicas": 3' in command
    said = "m, group gpu: 3 replicas, until `headrace scale m auto --group gpu`\n"
    assert capsys.readouterr().out == said


def test_a_refusal_or_a_job_that_says_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change, "jobs_of", lambda address: Jobs(printed({"error": "no such"})))
    with pytest.raises(ServerRefused, match="no such"):
        change.scale(TARGET, Where(address="http://head"))
    monkeypatch.setattr(change, "jobs_of", lambda address: Jobs("Traceback"))
    with pytest.raises(JobFailed, match="printed no answer"):
        change.scale(TARGET, Where(address="http://head"))


def test_automatic_again_says_so(asked, capsys) -> None:
    asked[1].update(replicas=None)
    assert change.scale(ManualTarget("m"), HERE) == 0
    assert capsys.readouterr().out == "m: as many replicas as its policy decides\n"


@pytest.fixture
def states(tmp_path, monkeypatch):
    """The state folder, with the file of a server on port 1 whose host was killed."""
    monkeypatch.setattr(server_files, "run_folder", lambda port: tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    killed = server_files.ProcessMark(os.getpid(), 1.0)
    state = server_files.ServerState(1, killed, "", "", "settings.yaml", 0.0, ID)
    server_files.write(state, server_files.state_folder())
    return server_files.state_folder()


@pytest.mark.parametrize("port", [1, None])
def test_stop_ends_what_a_killed_server_left_and_says_so(states, port, capsys):
    left = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env=os.environ | {orphaned_processes.VARIABLE: ID},
    )
    try:
        assert change.stop(Where(port)) == 0
        assert left.wait(10) == -15
    finally:
        left.kill()
        left.wait()
    assert "ended a process that a killed server left on port 1" in capsys.readouterr().err
    assert server_files.listing(states) == []


@pytest.mark.parametrize("port", [1, 2, None])
def test_stop_where_nothing_is_left_finds_no_server(states, port):
    with pytest.raises(NoServer, match="start one with"):
        change.stop(Where(port))


def test_stop_says_which_process_does_not_end(states, monkeypatch):
    def never(dead, folder):
        raise TimeoutError("processes 7 of a killed server do not end")

    monkeypatch.setattr(orphaned_processes, "clear", never)
    with pytest.raises(ServerRefused, match="processes 7"):
        change.stop(Where(1))
