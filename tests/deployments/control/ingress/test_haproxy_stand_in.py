"""HAProxy is killed: its port goes on answering until Serve has another, or the node is gone."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest

from deployments.control.ingress import haproxy, haproxy_wrapper
from deployments.control.ingress.haproxy_stand_in import (
    HAProxyFiles,
    process_at,
    stand_ins,
    takes_over,
    with_gateways,
)
from deployments.control.supervisor import ports

pytestmark = pytest.mark.slow  # real HAProxies

# A node's process that starts what it is told on its input, as a manager's child: HAProxy's
# grandparent. The manager writes the exit code to the file named first. Ends with its input.
NODE = """
import subprocess, sys
manager = 'import pathlib, subprocess, sys; code = subprocess.run(sys.argv[2:]).returncode'
manager += '; pathlib.Path(sys.argv[1]).write_text(str(code))'
for line in sys.stdin:
    subprocess.Popen([sys.executable, '-c', manager, *line.split()])
"""


STREAM, PIECES, PIECE_S = "/v1/stream", 60, 0.05


class Gateway(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        if self.path == STREAM:
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for _ in range(PIECES):
                self.wfile.write(b"5\r\npiece\r\n")
                time.sleep(PIECE_S)
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("content-length", "11")
        self.end_headers()
        self.wfile.write(b"the gateway")

    def log_message(self, *_: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Node:
    """One at whose `port` HAProxy answers; `config`: what Serve wrote for it."""

    process: subprocess.Popen[str]
    port: int
    config: Path

    @property
    def files(self) -> HAProxyFiles:
        return HAProxyFiles(str(self.config))

    @property
    def exit_code(self) -> Path:
        """Of the HAProxy that ended last."""
        return self.config.with_name("exit-code")

    def start_haproxy(self, *arguments: object) -> None:
        command = [sys.executable, "-m", haproxy_wrapper.__name__, "-db", "-f", self.config]
        print(self.exit_code, *command, *arguments, file=self.process.stdin, flush=True)

    def newest(self) -> int:
        return int(Path(self.files.current).read_text())

    def begin_stream(self) -> Iterator[bytes]:
        """A stream that has begun, the first piece taken."""
        with httpx.stream("GET", f"http://127.0.0.1:{self.port}{STREAM}", timeout=5) as answer:
            yield from answer.iter_raw()

    def answer(self) -> int:
        """The status of a request; 0: nobody listens."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/v1/models", timeout=5).status_code
        except httpx.HTTPError:
            return 0


@pytest.fixture(scope="module")
def gateway_port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def node(tmp_path: Path, gateway_port: int) -> Iterator[Node]:
    """Whose HAProxy answers."""
    found = _node(tmp_path, gateway_port)
    found.start_haproxy()
    until(lambda: found.answer() == 200)
    time.sleep(0.3)  # until its watcher, which looks each 0.1 s, has seen it
    yield found
    found.process.kill()
    found.process.wait()
    until(lambda: found.files.running() is None)
    for pid in [found.newest()]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _node(folder: Path, gateway_port: int) -> Node:
    config = haproxy._written_by_serve(folder)
    port, stats, metrics = ports.several_free(3)
    text = config.read_text().replace("127.0.0.1:30000", f"127.0.0.1:{gateway_port}")
    for known, free in ((8000, port), (8404, stats), (9101, metrics)):
        assert f":{known}\n" in text
        text = text.replace(f":{known}\n", f":{free}\n")
    config.write_text(text)
    process = subprocess.Popen([sys.executable, "-c", NODE], stdin=subprocess.PIPE, text=True)
    return Node(process, port, config)


def until(holds: Callable[[], bool], limit_s: float = 15.0) -> float:
    """Seconds that it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < limit_s
        time.sleep(0.02)
    return time.monotonic() - began


def runs(pid: int) -> bool:
    """One that nobody waited for runs no more."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def without_gateways(config: Path) -> str:
    """As Serve writes it before it knows one, in the same frame."""
    lines = config.read_text().splitlines(keepends=True)
    return "".join(line for line in lines if "SERVE_REPLICA_" not in line)


def test_a_killed_haproxy_is_stood_in_for_and_the_next_one_takes_over_without_a_gap(node):
    written = without_gateways(node.config)
    killed = node.newest()
    os.kill(killed, signal.SIGKILL)
    until(lambda: node.answer() == 200, 5.0)
    assert node.files.running() not in (None, killed)

    node.config.write_text(written)
    answers: list[int] = []
    node.start_haproxy()
    until(lambda: answers.append(node.answer()) or node.newest() != killed)
    until(lambda: answers.append(node.answer()) or node.files.running() is None)
    answers += [node.answer() for _ in range(20)]
    assert set(answers) == {200}


def test_a_haproxy_that_hangs_is_ended_and_stood_in_for(node):
    hung = node.newest()
    os.kill(hung, signal.SIGSTOP)
    until(lambda: node.files.running() not in (None, hung))
    until(lambda: node.answer() == 200, 5.0)
    assert not runs(hung)


def test_nobody_at_the_admin_socket_is_no_haproxy_that_hangs(tmp_path):
    path = str(tmp_path / "admin")
    assert process_at(path, 0.01) == 0
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)  # whoever listened has gone
        assert process_at(path, 0.01) == 0


def test_one_who_takes_connections_and_says_nothing_hangs(tmp_path):
    path = str(tmp_path / "admin")
    with socket.socket(socket.AF_UNIX) as hangs:
        hangs.bind(path)
        hangs.listen(0)
        assert process_at(path, 0.01) is None
        with contextlib.ExitStack() as full:
            with contextlib.suppress(BlockingIOError):
                while True:
                    waits = full.enter_context(socket.socket(socket.AF_UNIX))
                    waits.setblocking(False)
                    waits.connect(path)
            assert process_at(path, 0.01) is None


def test_serve_finds_no_haproxy_at_the_admin_socket_of_the_killed_one(node):
    (line,) = [x for x in node.config.read_text().splitlines() if "stats socket" in x]
    address = line.split()[2]
    os.kill(node.newest(), signal.SIGKILL)
    until(lambda: node.answer() == 200, 5.0)
    with socket.socket(socket.AF_UNIX) as conn, pytest.raises(OSError, match=r"refused|No such"):
        conn.connect(address)


def test_a_stand_in_that_is_killed_is_started_again(node):
    os.kill(node.newest(), signal.SIGKILL)
    until(lambda: node.files.running() is not None)
    first = node.files.running()
    os.kill(first, signal.SIGKILL)
    until(lambda: node.files.running() not in (None, first))
    until(lambda: node.answer() == 200)


def test_a_stand_in_ends_with_its_node(node):
    os.kill(node.newest(), signal.SIGKILL)
    until(lambda: node.files.running() is not None)
    node.process.kill()
    node.process.wait()
    until(lambda: node.files.running() is None)
    assert node.answer() == 0


def test_haproxy_does_not_outlive_its_node(node):
    pid = node.newest()
    node.process.kill()
    node.process.wait()
    until(lambda: node.answer() == 0)
    until(lambda: not runs(pid))
    assert node.files.running() is None


def test_haproxy_ends_although_nobody_waited_for_its_node(node):
    node.process.kill()
    until(lambda: node.answer() == 0)
    until(lambda: not runs(node.newest()))


def test_a_haproxy_that_was_replaced_is_not_stood_in_for(node):
    before = node.newest()
    node.start_haproxy("-sf", before)
    until(lambda: node.newest() != before)
    until(lambda: not runs(before))
    assert node.answer() == 200
    assert not Path(node.files.process).exists()


def test_kept_connections_lose_nothing_when_haproxy_is_replaced(node):
    """Ray's `idle-close-on-response`: without it, more than half of them end each time."""
    over, answers = threading.Event(), list[object]()

    def ask() -> None:
        kept = http.client.HTTPConnection("127.0.0.1", node.port, timeout=5)
        while not over.wait(0.02):
            try:
                kept.request("GET", "/v1/models")
                with kept.getresponse() as answer:
                    answers.append((answer.status, answer.read()))
            except (OSError, http.client.HTTPException) as error:
                answers.append(repr(error))
                kept.close()

    callers = [threading.Thread(target=ask) for _ in range(4)]
    for caller in callers:
        caller.start()
    for _ in range(3):
        before = node.newest()
        node.start_haproxy("-sf", before)
        until(lambda before=before: node.newest() != before)
        until(lambda before=before: not runs(before))
    over.set()
    for caller in callers:
        caller.join()
    assert set(answers) == {(200, b"the gateway")}


@pytest.mark.parametrize("killed", [False, True], ids=["HAProxy", "a stand-in"])
def test_a_stream_goes_on_to_its_end_after_a_newer_haproxy_has_taken_over_from(node, killed):
    written, serves = node.config.read_text(), node.newest()
    if killed:
        os.kill(serves, signal.SIGKILL)
        until(lambda: node.answer() == 200 and node.files.running() is not None)
    stream = node.begin_stream()
    came = len(next(stream))
    node.config.write_text(written)
    node.start_haproxy(*([] if killed else ["-sf", serves]))
    until(lambda: node.newest() != serves and node.answer() == 200)
    came += sum(len(piece) for piece in stream)
    assert came == PIECES * len(b"piece")
    until(lambda: node.files.running() is None and not runs(serves))


def test_a_haproxy_that_could_not_start_is_not_stood_in_for(node):
    serves, written = node.newest(), node.config.read_text()
    node.config.write_text(written + "nonsense\n")
    node.start_haproxy()
    until(node.exit_code.exists)
    assert node.exit_code.read_text() == "1"
    until(lambda: node.newest() == serves)
    assert node.files.running() is None
    assert node.answer() == 200


# ---- what the next one begins with --------------------------------------------------------------

FRAME = "global\n    stats socket {admin} mode 600\nfrontend http_frontend\n    bind {host}:80\n"
KNOWN = FRAME + "backend http-gateway\n    server SERVE_REPLICA_gateway-1 10.0.0.1:1\n"
NEW = FRAME.format(admin="/run/a", host="::")


@pytest.fixture
def stood_in(tmp_path: Path) -> Iterator[HAProxyFiles]:
    """HAProxyFiles of a stand-in that is some process with the right argument."""
    files = HAProxyFiles(str(tmp_path / "haproxy.cfg"))
    Path(files.stand_in).write_text(KNOWN.format(admin="/run/2", host="::"))
    process = subprocess.Popen(["tail", "-f", "/dev/null", files.stand_in])
    Path(files.process).write_text(str(process.pid))
    until(lambda: files.running() is not None)
    yield files
    process.kill()
    process.wait()


def test_a_new_haproxy_begins_with_the_stand_ins_gateways_at_its_own_socket(stood_in):
    assert with_gateways(NEW, stood_in) == KNOWN.format(admin="/run/a", host="::")


@pytest.mark.parametrize(
    "config",
    [KNOWN.format(admin="/run/a", host="::"), FRAME.format(admin="/run/a", host="127.0.0.1")],
    ids=["has gateways", "another address"],
)
def test_gateways_of_its_own_or_another_address_stay(stood_in, config):
    assert with_gateways(config, stood_in) == config


def test_without_a_stand_in_nothing_is_taken_over(tmp_path):
    files = HAProxyFiles(str(tmp_path / "haproxy.cfg"))
    assert with_gateways(NEW, files) == NEW
    assert takes_over(["-db", "-sf", "7"], files) == ["-db", "-sf", "7"]


def test_a_stand_in_takes_its_gateways_for_up_whatever_they_were_when_they_changed():
    state = "defaults\n    load-server-state-from-file global\n"
    assert stand_ins(NEW + state) == FRAME.format(admin="/run/2", host="::") + "defaults\n"


def test_a_number_that_another_process_has_now_is_nobody(stood_in):
    Path(stood_in.process).write_text(str(os.getpid()))
    assert takes_over(["-db"], stood_in) == ["-db"]


def test_who_takes_over_says_from_whom(stood_in):
    pid = str(stood_in.running())
    assert takes_over(["-db"], stood_in) == ["-db", "-x", "/run/2", "-sf", pid]
    assert takes_over(["-sf", "7", "-x", "/run/a"], stood_in) == ["-sf", pid, "7", "-x", "/run/a"]
