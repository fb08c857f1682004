"""How the host answers, and what it says of itself."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments.control.supervisor import control_socket, server_files
from deployments.control.supervisor.control_socket import ControlSocket, EventLines
from deployments.control.supervisor.server_files import NoServer
from deployments.tools.where import ServerRefused, ask

PORT = 1


def _fail(request: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("no such thing")


HANDLERS: dict[str, control_socket.Handler] = {
    "status": lambda request: {"asked": request},
    "refuse": lambda request: {"error": "not now"},
    "fail": _fail,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    found = tmp_path_factory.mktemp("s") / "c.sock"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_files, "control_socket", lambda port: found)
        patch.setattr(control_socket, "control_socket", lambda port: found)
        with ControlSocket(PORT, HANDLERS):
            yield found
        assert not found.exists()


@pytest.mark.usefixtures("path")
def test_a_question_is_answered() -> None:
    asked = ask(PORT, {"do": "status", "n": 1})["asked"]
    assert (asked["do"], asked["n"]) == ("status", 1)


def test_who_asks_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control_socket, "IDLE_S", 0.02)
    monkeypatch.setattr(control_socket, "control_socket", lambda port: tmp_path / "c.sock")
    with ControlSocket(PORT, HANDLERS), socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(tmp_path / "c.sock"))
        silent.settimeout(5.0)
        assert silent.recv(1) == b""
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("do", "says"),
    [("refuse", "not now"), ("fail", "ValueError: no such thing"), ("dance", "not a request")],
)
def test_a_refusal_says_why(do: str, says: str) -> None:
    with pytest.raises(ServerRefused, match=says):
        ask(PORT, {"do": do})


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"do": []}', b"\xff", b"null"])
def test_rubbish_is_answered_and_harms_nobody(path: Path, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as conn:
        conn.connect(str(path))
        conn.sendall(line + b"\n")
        assert b"not a request" in conn.makefile("rb").readline()
    assert ask(PORT, {"do": "status"})


def test_the_socket_is_its_owners_alone(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_server_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server_files, "control_socket", lambda port: tmp_path / "none")
    with pytest.raises(NoServer, match="starting or stopping"):
        ask(PORT, {"do": "status"})


def test_a_host_that_goes_without_an_answer_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(server_files, "control_socket", lambda port: tmp_path / "dumb")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "dumb"))
        listening.listen()

        def hang_up() -> None:
            conn, _ = listening.accept()
            conn.makefile("rb").readline()
            conn.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(ServerRefused, match="ended before it answered"):
            ask(PORT, {"do": "status"})
        thread.join(5.0)


def test_a_host_that_does_not_answer_in_time_is_said_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(server_files, "control_socket", lambda port: tmp_path / "late")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "late"))
        listening.listen()
        with pytest.raises(ServerRefused, match=r"did not answer within 0\.01 s"):
            ask(PORT, {"do": "status"}, timeout_s=0.01)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Descriptors to read from and to write to."""
    ends = os.pipe()
    yield ends
    for each in ends:
        os.close(each)


def test_lines_are_read_in_order(pipe):
    lines = EventLines(pipe[1])
    lines.say("phase", name="ray")
    lines.say("ready", seconds=1.5)
    lines.close()
    read = os.read(pipe[0], 10_000).splitlines()
    assert [json.loads(line) for line in read] == [
        {"event": "phase", "name": "ray"},
        {"event": "ready", "seconds": 1.5},
    ]


def test_nobody_waits_for_a_reader_that_does_not_read(pipe):
    lines = EventLines(pipe[1], most=3)
    began = time.monotonic()
    for _ in range(100):
        lines.say("log", message="x" * 10_000)  # a pipe holds 64 KiB
    lines.close(0.01)
    assert time.monotonic() - began < 5


def test_a_reader_that_left_is_no_error(capfd):
    reading, writing = os.pipe()
    os.close(reading)
    lines = EventLines(writing)
    lines.say("log", message="x")
    lines.say("log", message="y")
    lines.close()
    assert capfd.readouterr().err == ""
    os.close(writing)


def test_a_process_ends_although_its_reader_does_not_read(pipe):
    code = (
        "import sys; from deployments.control.supervisor.control_socket import EventLines\n"
        "lines = EventLines(sys.stdout.fileno())\n"
        "for _ in range(100): lines.say('log', message='x' * 10_000)\n"
        "lines.close(0.01)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=pipe[1])
    try:
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
