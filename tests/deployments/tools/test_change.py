from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.control.dashboard import ClusterError
from deployments.control.supervisor import orphaned_processes, server_files
from deployments.control.supervisor.server_files import NoServer
from deployments.tools import change
from deployments.tools.where import ServerRefused, Where
from runtimes.errors import LoadError
from tests.runtimes.adapter_folders import write_adapter

ID = uuid.uuid4().hex  # other runs of these tests have processes of their own
HERE = Where()
FOLDER = server_files.state_folder
TARGET = ("m", "gpu", 3)


class FakeCluster:
    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.scaled: list[tuple[str, str, int | None]] = []

    def scale(self, *target: Any) -> None:
        if self.fault:
            raise ClusterError(self.fault)
        self.scaled.append(target)

    def adapt(self, *target: Any) -> None:
        if self.fault:
            raise ClusterError(self.fault)
        self.scaled.append(target)

    def adapters(self, model: str) -> dict[str, tuple[str, bool]]:
        return {"law": ("/law", False), "new": ("/new", True)}

    def decide(self, model: str, why: str) -> None:
        self.decided = (model, why)

    def back(self, model: str) -> tuple[str, int]:
        return model, 2

    def watch(self, done: str, limit_s: float, say: object) -> dict[str, str]:
        return {"model-m": self.fault} if self.fault else {}


@pytest.fixture
def a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCluster:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = FakeCluster()
    monkeypatch.setattr(Where, "server", lambda self: SimpleNamespace(port=8000))
    monkeypatch.setattr(Where, "cluster", lambda self: made)
    return made


def test_a_cluster_is_told_of_a_number_of_replicas(a_cluster, capsys) -> None:
    assert change.scale(*TARGET, Where(address="http://head")) == 0
    assert a_cluster.scaled == [TARGET]
    said = "m, group gpu: 3 replicas, until `headrace scale m auto --group gpu`\n"
    assert capsys.readouterr().out == said


def test_an_adapter_is_looked_at_before_the_server_hears_of_it(a_cluster, tmp_path, capsys) -> None:
    folder = write_adapter(tmp_path / "law", 16)
    assert change.add_adapter("llm", "law", str(folder), HERE) == 0
    assert a_cluster.scaled == [("llm", "law", str(folder))]
    (folder / "run.py").write_text("")
    for name, source, said in [
        ("law", str(folder), "run.py is code"),
        ("law", str(tmp_path / "none"), "no file or folder"),
        ("law", "s3://bucket/law", "has no digest"),
        ("l:w", str(folder), "'l:w' is no name of an adapter"),
    ]:
        with pytest.raises(LoadError, match=said):
            change.add_adapter("llm", name, source, HERE)
    assert change.remove_adapter("llm", "law", HERE) == 0
    assert a_cluster.scaled[1:] == [("llm", "law", None)]
    capsys.readouterr()
    assert change.list_adapters("llm", HERE) == 0
    assert capsys.readouterr().out == "llm:law  /law\nllm:new  /new  (by hand)\n"


def test_what_the_cluster_refuses_is_told(a_cluster) -> None:
    a_cluster.fault = "no such model"
    with pytest.raises(ClusterError, match="no such model"):
        change.scale(*TARGET, Where(address="http://head"))


@pytest.mark.parametrize("where", [HERE, Where(address="http://head")])
def test_who_aborts_hears_that_the_file_has_the_new_version_still(a_cluster, where, capsys):
    assert change.abort("m", "a bad day", where) == 0
    assert a_cluster.decided == ("m", "a bad day")
    assert "a server that starts serves it at once" in capsys.readouterr().out
    files = [server_files.audit_file(8000, FOLDER()), server_files.commands_audit_file(FOLDER())]
    assert [file.exists() for file in files] == [where == HERE, where != HERE]


def test_back_says_how_far_it_still_goes_or_why_it_did_not(a_cluster, capsys):
    assert change.back("m", HERE) == 0
    said = "m: the previous version runs again; 2 earlier ones are still known\n"
    assert capsys.readouterr().out == said
    a_cluster.fault = "no file"
    assert change.back("m", HERE) == 1
    assert capsys.readouterr().err == "the previous version of m cannot start: no file\n"


def test_automatic_again_says_so(a_cluster, capsys) -> None:
    assert change.scale("m", "", None, HERE) == 0
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
