from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import uuid

import pytest

from deployments.control.supervisor import orphaned_processes, server_files
from deployments.control.supervisor.control_socket import ControlSocket
from deployments.control.supervisor.server_files import NoServer
from deployments.tools import control

ID = uuid.uuid4().hex  # other runs of these tests have processes of their own


@pytest.fixture(autouse=True)
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(server_files, "run_folder", lambda port: tmp_path)
    return tmp_path


def fails(_):
    raise RuntimeError("no cluster")


def test_a_question_is_answered_by_its_handler():
    with ControlSocket(1, {"status": lambda request: {"asked": request["do"]}}):
        assert control.ask(1, {"do": "status"}) == {"asked": "status"}


def test_a_handler_that_raises_is_a_refusal_and_the_next_question_is_answered():
    with ControlSocket(1, {"apply": fails, "status": lambda _: {"up": True}}):
        with pytest.raises(control.ServerRefused, match="RuntimeError: no cluster"):
            control.ask(1, {"do": "apply"})
        assert control.ask(1, {"do": "status"}) == {"up": True}


@pytest.mark.parametrize("line", [b"\n", b"[]\n", b'{"do": "dance"}\n', b"\xff\n"])
def test_rubbish_is_refused_in_words(run, line):
    with ControlSocket(1, {}), socket.socket(socket.AF_UNIX) as conn:
        conn.connect(str(run / "control.sock"))
        conn.sendall(line)
        assert b"not a request this host knows" in conn.makefile("rb").readline()


def test_the_socket_is_its_owners_alone_and_goes(run):
    with ControlSocket(1, {}):
        assert (run / "control.sock").stat().st_mode & 0o777 == 0o600
    assert not (run / "control.sock").exists()


def test_nobody_there_is_no_server():
    with pytest.raises(NoServer, match="starting or stopping"):
        control.ask(1, {"do": "status"})


def test_a_host_that_does_not_answer_in_time_is_said_so():
    answer = threading.Event()

    def late(_):
        answer.wait(1)
        return {}

    with ControlSocket(1, {"status": late}):
        with pytest.raises(control.ServerRefused, match=r"did not answer within 0\.01 s"):
            control.ask(1, {"do": "status"}, timeout_s=0.01)
        answer.set()


@pytest.mark.parametrize("other", ["apply", "rollback"])
def test_changes_are_made_one_after_another(other):
    inside, most = [], []
    never = threading.Event()

    def apply(_):
        inside.append(1)
        never.wait(0.02)
        most.append(len(inside))
        inside.pop()
        return {}

    with ControlSocket(1, {"apply": apply, "rollback": apply}):
        asked = [
            threading.Thread(target=control.ask, args=(1, {"do": do})) for do in ("apply", other)
        ]
        for thread in asked:
            thread.start()
        for thread in asked:
            thread.join()
    assert most == [1, 1]


@pytest.fixture
def states(tmp_path, monkeypatch):
    """The state folder, with the file of a server on port 1 whose host was killed."""
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
        assert control.stop(port) == 0
        assert left.wait(10) == -15
    finally:
        left.kill()
        left.wait()
    assert "ended a process that a killed server left on port 1" in capsys.readouterr().err
    assert server_files.listing(states) == []


@pytest.mark.parametrize("port", [1, 2, None])
def test_stop_where_nothing_is_left_finds_no_server(states, port):
    with pytest.raises(NoServer, match="start one with"):
        control.stop(port)


def test_stop_says_which_process_does_not_end(states, monkeypatch):
    def never(dead, folder):
        raise TimeoutError("processes 7 of a killed server do not end")

    monkeypatch.setattr(orphaned_processes, "clear", never)
    with pytest.raises(control.ServerRefused, match="processes 7"):
        control.stop(1)


def test_apply_says_why_an_optional_model_cannot_start(capsys, monkeypatch):
    found = {"c": ("starting", "staging 10%"), "d": ("starting", "")}
    asked = []

    def status(_):
        asked.append(dict(found))
        if len(asked) == 2:
            found["c"] = ("failed", "no file m.onnx")
            found["d"] = ("ready", "")
        return {"models": [{"name": n, "state": s, "reason": why} for n, (s, why) in found.items()]}

    monkeypatch.setattr(control, "_LOOKS_S", 0.0)
    monkeypatch.setattr(control, "status", status)
    control._say_optional(["c", "d", "gone"], 1)
    assert capsys.readouterr().out == "c is optional and cannot start: no file m.onnx\n"
    assert len(asked) == 2
    monkeypatch.setattr(control, "_OPTIONAL_S", 0.0)
    control._say_optional(["e"], 1)
    assert "e is optional and still starting" in capsys.readouterr().out
