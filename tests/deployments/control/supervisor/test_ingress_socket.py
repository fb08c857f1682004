"""The socket outlives who accepts from it: nobody is refused while a gateway is replaced, and who
waits for none is told so."""

import json
import socket
import stat

import pytest

from deployments.control.supervisor import ingress_socket, ports
from deployments.control.supervisor.ingress_socket import IngressSocket
from deployments.process.listening_socket import received

ASK = b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
def held(tmp_path, monkeypatch):
    monkeypatch.setattr(ingress_socket, "_SILENT_S", 0.2)
    monkeypatch.setattr(ingress_socket, "_LOOK_S", 0.02)
    found = IngressSocket("127.0.0.1", ports.any_free(), tmp_path / "ingress.sock")
    found.port, found.path = found._listening.getsockname()[1], str(tmp_path / "ingress.sock")
    yield found
    found.close()


def connected(held):
    return socket.create_connection(("127.0.0.1", held.port), 5)


def everything(connection):
    connection.settimeout(5)
    found = b""
    while more := connection.recv(65536):
        found += more
    return found


def test_before_the_first_gateway_nobody_listens(held):
    with pytest.raises(ConnectionRefusedError):
        connected(held)


def test_where_somebody_listens_meanwhile_no_gateway_gets_the_socket(held, caplog):
    with socket.create_server(("127.0.0.1", held.port)):
        with pytest.raises(ConnectionError, match="handed over no socket"):
            received(held.path, 5)
        assert "in use" in caplog.text


def test_who_connects_while_a_gateway_is_replaced_is_answered_by_the_next(held):
    holder, first = received(held.path, 5)
    caller = connected(held)
    holder.close()
    first.close()
    later = connected(held)
    holder, successor = received(held.path, 5)
    for each in (caller, later):
        accepted, _ = successor.accept()
        accepted.sendall(b"here")
        accepted.close()
        assert everything(each) == b"here"
    holder.close()
    successor.close()


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (b"/v2/health/ready", "no gateway can take the request now; send it again"),
        (b"/v1/models/m:predict", "no gateway can take the request now; send it again"),
        (
            b"/v1/embeddings?x",
            {
                "message": "no gateway can take the request now; send it again",
                "type": "server_error", "param": None, "code": "overloaded",
            },
        ),
    ],
)  # fmt: skip
def test_without_a_gateway_for_a_while_callers_are_told_so(held, path, error):
    holder, listening = received(held.path, 5)
    holder.close()
    listening.close()
    caller = connected(held)  # waits first, and is not forgotten
    caller.sendall(ASK % path)
    head, _, body = everything(caller).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in head
    assert json.loads(body) == {"error": error}


def test_who_says_nothing_or_no_http_is_left_and_others_are_answered(held, monkeypatch):
    monkeypatch.setattr(ingress_socket, "_HEAD_S", 0.2)
    holder, listening = received(held.path, 5)
    holder.close()
    listening.close()
    silent, odd, asks = connected(held), connected(held), connected(held)
    odd.sendall(b"\x16\x03\x01\r\n\r\n")
    asks.sendall(ASK % b"/")
    assert everything(asks).startswith(b"HTTP/1.1 503 ")
    assert everything(odd) == everything(silent) == b""


def test_a_gateway_that_comes_takes_over_from_the_stand_in(held):
    holder, listening = received(held.path, 5)
    holder.close()
    listening.close()
    told = connected(held)
    told.sendall(ASK % b"/")
    assert b" 503 " in everything(told)
    holder, listening = received(held.path, 5)
    caller = connected(held)
    listening.settimeout(5)
    accepted, _ = listening.accept()
    assert accepted.getpeername() == caller.getsockname()
    holder.close()


def test_the_hand_over_is_for_this_user_alone(held, tmp_path):
    assert stat.S_IMODE((tmp_path / "ingress.sock").stat().st_mode) == 0o600


def test_after_the_end_nobody_listens(tmp_path):
    held = IngressSocket("127.0.0.1", 0, tmp_path / "ingress.sock")
    port = held._listening.getsockname()[1]
    _, listening = received(str(tmp_path / "ingress.sock"), 5)
    held.close()
    listening.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
