from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from deployments.control.dashboard import ClusterError
from deployments.control.manual_target import ManualTarget
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


class FakeCluster:
    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.scaled: list[ManualTarget] = []

    def scale(self, target: ManualTarget) -> None:
        if self.fault:
            raise ClusterError(self.fault)
        self.scaled.append(target)


@pytest.fixture
def a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCluster:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = FakeCluster()
    monkeypatch.setattr(Where, "cluster", lambda self: made)
    return made


def test_a_cluster_is_told_of_a_number_of_replicas(a_cluster, capsys) -> None:
    assert change.scale(TARGET, Where(address="http://head")) == 0
    assert a_cluster.scaled == [TARGET]
    said = "m, group gpu: 3 replicas, until `headrace scale m auto --group gpu`\n"
    assert capsys.readouterr().out == said


def test_what_the_cluster_refuses_is_told(a_cluster) -> None:
    a_cluster.fault = "no such model"
    with pytest.raises(ClusterError, match="no such model"):
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
