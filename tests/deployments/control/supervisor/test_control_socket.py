"""The command line and its host, over a Unix socket: one JSON line each way."""

from __future__ import annotations

import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments.control.supervisor import control_socket, server_files
from deployments.control.supervisor.control_socket import ControlSocket
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
