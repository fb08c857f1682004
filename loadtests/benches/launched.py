"""Starts a server under test, waits until it is ready, and stops it with all its processes.

`launched` is a context manager around one child process. The child gets a mark in its environment,
which its descendants inherit. The server is ready when a URL answers 200. It is stopped by SIGTERM;
processes with the mark that remain are ended by their ids, and fail the bench if the server is our
own (`strict`). Output goes to a file, whose end is shown if the start fails.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from loadtests.benches.processes import MARK, Usage, marked, usage

LOG_DIR = Path("out/bench/logs")
POLL_S = 0.1
GRACE_S = 5.0


class ServerTrouble(RuntimeError):
    """The server did not start, or left processes behind."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a server, and how to know that it is ready."""

    name: str
    command: Sequence[str]
    url: str
    ready_url: str  # answers 200 once the server is ready
    environ: Mapping[str, str] = field(default_factory=dict)
    start_limit_s: float = 180.0
    stop_limit_s: float = 60.0
    strict: bool = False  # processes that remain after a stop are an error, besides being ended


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that is ready."""

    name: str
    url: str  # where requests go
    mark: str  # in the environment of its processes
    ready_s: float  # seconds from its start until it was ready
    log: Path

    def usage(self, *, memory: bool = False) -> list[Usage]:
        return usage(marked(self.mark), memory=memory)


def free_port() -> int:
    """A port that is free at this moment; nothing reserves it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def get_status(url: str, timeout_s: float = 2.0) -> int:
    """The HTTP status; 0 if nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@contextlib.contextmanager
def launched(launch: Launch) -> Iterator[RunningServer]:
    """Yields the running server. Raises `ServerTrouble`."""
    LOG_DIR.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex
    log = LOG_DIR / f"{launch.name}.log"
    environ = {**os.environ, **launch.environ, MARK: mark}
    start = time.perf_counter()
    with log.open("wb") as output:
        child = subprocess.Popen(
            launch.command, stdout=output, stderr=subprocess.STDOUT, env=environ
        )
    failing = True
    try:
        wait_until_ready(launch, child, log)
        yield RunningServer(launch.name, launch.url, mark, time.perf_counter() - start, log)
        failing = False
    finally:
        left = stop(launch, child, mark)
        if left and launch.strict and not failing:
            raise ServerTrouble(f"{launch.name} left processes behind: {', '.join(left)}")


def wait_until_ready(launch: Launch, child: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.perf_counter() + launch.start_limit_s
    while get_status(launch.ready_url) != 200:
        if child.poll() is not None:
            raise ServerTrouble(f"{launch.name} ended with {child.returncode}:\n{tail(log)}")
        if time.perf_counter() > deadline:
            raise ServerTrouble(
                f"{launch.name} is not ready after {launch.start_limit_s:g} s:\n{tail(log)}"
            )
        time.sleep(POLL_S)


def stop(launch: Launch, child: subprocess.Popen[bytes], mark: str) -> list[str]:
    """Ends all processes with the mark; returns those that the server itself had left running."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(launch.stop_limit_s)
    left = remaining(mark)
    names = [f"{process.pid} {describe(process)}" for process in left]
    end(left)
    child.wait()
    return names


def remaining(mark: str) -> list[psutil.Process]:
    """Processes with the mark that are still there after a while: a process whose parent has just
    ended notices that by a closed pipe (as the dashboard's fork server does)."""
    deadline = time.perf_counter() + GRACE_S
    while (left := marked(mark)) and time.perf_counter() < deadline:
        time.sleep(POLL_S)
    return left


def end(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=5)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()


def describe(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:80] or process.name()
    except psutil.Error:
        return "(gone)"


def tail(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
