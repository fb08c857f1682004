"""The machines that the cluster's tests run on do what their faults say, and leave nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.machines import CHECKOUT, CannotMakeMachines, Lab, Machine

pytestmark = [pytest.mark.cluster, pytest.mark.integration]
PORT = 8099
ASK = """
import socket, sys
asked = socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)
print(asked.recv(2).decode())
"""
ANSWER = """
import socket, sys
server = socket.create_server(("", int(sys.argv[1])))
print("listens", flush=True)
while True:
    server.accept()[0].sendall(b"ok")
"""


@pytest.fixture
def pair():
    """Two machines; the second answers `ok` at PORT."""
    try:
        with Lab() as lab:
            asks, answers = lab.machine("asks"), lab.machine("answers")
            listens = [sys.executable, "-c", ANSWER, str(PORT)]
            server = answers.start(*listens, env={}, stdout=subprocess.PIPE)
            assert server.stdout is not None
            assert server.stdout.readline() == "listens\n"
            yield asks, answers
    except CannotMakeMachines as reason:
        pytest.skip(str(reason))


def answer(asks: Machine, ip: str) -> str:
    """What a connection to `ip` gives within a second; the last word of the error otherwise."""
    command = asks.command(sys.executable, "-c", ASK, ip, str(PORT))
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return asked.stdout.strip() or asked.stderr.strip().rpartition("\n")[2]


def test_machines_reach_each_other_and_are_reached_from_here(pair) -> None:
    asks, answers = pair
    assert answer(asks, answers.ip) == "ok"
    assert subprocess.run(
        [sys.executable, "-c", ASK, answers.ip, str(PORT)], capture_output=True, text=True
    ).stdout == "ok\n"  # fmt: skip


def test_an_unplugged_machine_is_silent_until_it_is_plugged_in_again(pair) -> None:
    asks, answers = pair
    answers.unplug()
    assert answer(asks, answers.ip) == "TimeoutError: timed out"
    answers.plug()
    assert answer(asks, answers.ip) == "ok"


def test_a_cut_loses_what_one_machine_sends_another_and_nothing_else(pair) -> None:
    asks, answers = pair
    asks.cut(answers.ip, PORT + 1)
    assert answer(asks, answers.ip) == "ok"
    asks.cut(answers.ip, PORT)
    assert answer(asks, answers.ip) == "TimeoutError: timed out"
    asks.mend(answers.ip, PORT)
    assert answer(asks, answers.ip) == "ok"


def test_a_machine_has_a_tmp_and_processes_of_its_own(pair) -> None:
    asks, answers = pair
    (asks.root / "tmp/mine").write_text("x")
    assert not (answers.root / "tmp/mine").exists()
    assert not Path("/tmp/mine").exists()
    seen = asks.run("sh", "-c", "ls /proc | grep -c '^[0-9]'").stdout
    assert int(seen) < 10


def test_a_killed_machine_ends_with_all_its_processes(pair) -> None:
    asks, answers = pair
    inside = Path(f"/proc/{answers.pid}/task/{answers.pid}/children").read_text()
    answers.kill()
    assert not answers.runs
    assert answer(asks, answers.ip) != "ok"
    assert not [pid for pid in inside.split() if Path(f"/proc/{pid}").exists()]


def there(interface: str) -> bool:
    shown = subprocess.run(["ip", "link", "show", interface], capture_output=True, check=False)
    return shown.returncode == 0


def test_a_killed_test_leaves_no_machine_and_no_interface_behind() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from tests.cluster.machines import Lab\n"
        "lab = Lab().__enter__(); m = lab.machine('m')\n"
        "print(m.pid, lab.network.interface, flush=True); input()"
    )
    here = str(CHECKOUT)
    test = subprocess.Popen(
        [sys.executable, "-c", script, here], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert test.stdout is not None
    assert test.stderr is not None
    said = test.stdout.readline().split()
    if not said:
        pytest.skip(test.stderr.read().strip().rpartition("\n")[2])
    pid, interface = said
    assert Path(f"/proc/{pid}").exists()
    assert there(interface)
    test.send_signal(signal.SIGKILL)
    test.wait()
    end = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() or there(interface):
        assert time.monotonic() < end
        time.sleep(0.05)
