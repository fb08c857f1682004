"""Ray's own processes: found, asked, and the dashboard started again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pytest

from deployments.control import dashboard
from deployments.control.dashboard import ClusterError, RayDashboard, ServeRest
from deployments.control.supervisor import ray_processes
from deployments.control.supervisor.ports import any_free
from deployments.control.supervisor.ray_processes import DashboardProcess, answers, own_dashboard


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """By the names that the kernel knows them by."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    started = {}
    for name in ("gcs_server", "raylet", "other"):
        shutil.copy(sleep, tmp_path / name)
        started[name] = subprocess.Popen([str(tmp_path / name), "600"])
    yield started
    for each in started.values():
        each.kill()
        each.wait()


ADDRESSES = {"gcs_server": "127.0.0.1:1", "raylet": "127.0.0.1:2"}


def among(started: dict[str, subprocess.Popen[bytes]]) -> list[ray_processes.RayProcess]:
    return ray_processes.among([psutil.Process(p.pid) for p in started.values()], ADDRESSES)


@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_one_that_ends_is_named_before_anybody_waits_for_it(processes, name):
    watched = among(processes)
    assert ray_processes.ended(watched) is None
    processes[name].kill()
    os.waitid(os.P_PID, processes[name].pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    lost = ray_processes.ended(watched)
    assert f"({name}), process {processes[name].pid}" in str(lost)
    assert lost.address == ADDRESSES[name]


AGENT = """
import signal, socket, time
taken = socket.create_server(("127.0.0.1", 0))
signal.signal(signal.SIGTERM, lambda *_: taken.close())
print("listens", flush=True)
while True:
    time.sleep(60)
"""


def test_an_agent_that_takes_no_more_connections_counts_as_ended(tmp_path):
    """As Ray's does for minutes after SIGTERM."""
    command = ["ray::RuntimeEnvAgent", "-u", "-c", AGENT]
    agent = subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE, text=True)
    try:
        assert agent.stdout is not None
        agent.stdout.readline()
        found = ray_processes._agent(psutil.Process())
        assert found is not None
        assert found.process.pid == agent.pid
        assert ray_processes.of_event(json.loads(json.dumps(found.event()))) == found
        assert ray_processes.ended([found]) is None
        agent.terminate()
        until = time.monotonic() + 10
        while ray_processes.ended([found]) is None and time.monotonic() < until:
            time.sleep(0.01)
        assert agent.poll() is None
        assert "(RuntimeEnvAgent), process" in str(ray_processes.ended([found]))
    finally:
        agent.kill()
        agent.communicate()


def test_others_may_end(processes):
    watched = among(processes)
    processes["other"].kill()
    processes["other"].wait()
    assert ray_processes.ended(watched) is None


def test_another_process_watches_by_what_an_event_says(processes):
    watched = among(processes)
    told = json.loads(json.dumps([each.event() for each in watched]))
    assert [ray_processes.of_event(each) for each in told] == watched


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a gRPC server that knows no health check."""
    made = grpc.server(ThreadPoolExecutor(1))
    port = made.add_insecure_port("127.0.0.1:0")
    made.start()
    yield port
    made.stop(None).wait()


def test_an_error_is_an_answer(server):
    assert answers(f"127.0.0.1:{server}", 5.0)


def test_nobody_there_is_no_answer():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert not answers(f"127.0.0.1:{free.getsockname()[1]}", 5.0)


def test_one_that_accepts_and_says_nothing_is_no_answer():
    with socket.create_server(("127.0.0.1", 0)) as hung:
        assert not answers(f"127.0.0.1:{hung.getsockname()[1]}", 0.05)


SERVES = """
import http.server, os, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"applications": {}, "mark": "%s"}' % os.environ["MARK"].encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
port = int(sys.argv[1].removeprefix("--port="))
http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""
SLEEPS = "import time; time.sleep(600)"


class Started:
    """A process of that program, and what is started after it."""

    def __init__(self, folder: Path, program: str, port: int) -> None:
        path = folder / "dashboard.py"
        path.write_text(program)
        self.port = port
        self.address = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-S", str(path), f"--port={port}"]
        self.first = subprocess.Popen(command, env={"MARK": "mine"})

    def running(self) -> list[psutil.Process]:
        return [
            child
            for child in psutil.Process().children()
            if ray_processes.runs(child) and f"--port={self.port}" in child.cmdline()
        ]

    def own(self) -> DashboardProcess:
        found = own_dashboard(self.address)
        assert found is not None
        return found

    def end(self) -> None:
        self.first.kill()
        self.first.wait()
        for process in self.running():
            process.kill()
            process.wait()


@pytest.fixture
def sleeping(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path, SLEEPS, any_free())
    yield started
    started.end()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path, SERVES, any_free())
    yield started
    started.end()


def test_a_dashboard_of_another_address_is_not_ones_own(sleeping):
    assert own_dashboard("http://127.0.0.1:1") is None
    assert own_dashboard(sleeping.address, [psutil.Process()]) is None
    assert own_dashboard(sleeping.address) is not None


def test_one_that_ends_at_its_start_is_not_waited_for(sleeping):
    process = sleeping.own()
    (Path(sleeping.first.args[2])).write_text("")
    process.start_again(lambda: False)
    assert sleeping.running() == []


def test_one_that_has_ended_runs_again_where_it_was_and_as_it_was(serving):
    rest, process = ServeRest(RayDashboard(serving.address, None)), serving.own()
    serving.first.kill()
    serving.first.wait()
    process.start_again(rest.answers)
    assert rest.details() == {"applications": {}, "mark": "mine"}
    assert len(serving.running()) == 1


def test_one_that_hangs_is_ended_and_another_answers(serving, monkeypatch):
    monkeypatch.setattr(dashboard, "_ALIVE_S", 0.2)
    rest, process = ServeRest(RayDashboard(serving.address, None, answer_s=0.2)), serving.own()
    serving.first.send_signal(signal.SIGSTOP)
    process.start_again(rest.answers)
    assert rest.details()["mark"] == "mine"
    assert [each.pid for each in serving.running()] != [serving.first.pid]


def test_who_reads_waits_for_another_and_hears_what_goes_on_if_none_comes(serving):
    rest = ServeRest(RayDashboard(serving.address, None), patience_s=60.0)
    process = serving.own()
    serving.first.kill()
    serving.first.wait()
    again = threading.Timer(0.0, process.start_again, (rest.answers,))
    again.start()
    assert rest.details()["mark"] == "mine"
    again.join()
    for each in serving.running():
        each.kill()
    impatient = ServeRest(RayDashboard(serving.address, None), 0.01, lambda _: None)
    with pytest.raises(
        ClusterError, match=r"does not start again: .*requests are served meanwhile"
    ):
        impatient.details()
