"""Starts a server under test on free ports, watches its processes, and stops all of them.

A server gets a mark in its environment, which all its descendants inherit, also those that leave
the process tree (Ray's workers, HAProxy). It is ready when a URL answers 200. It is stopped by
SIGTERM; processes with the mark that remain are ended by their ids, and fail the bench if the
server is our own (`strict`). `headrace` starts `headrace serve` with given settings; its cache and
state are under `out/bench`, not in the user's home, so that a bench can start cold. A process's
role follows from its title, which Ray and HAProxy set.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

BENCH_DIR = Path("out/bench")
SETTINGS_DIR = BENCH_DIR / "settings"
HOME_DIR = BENCH_DIR / "home"
LOG_DIR = BENCH_DIR / "logs"
MARK = "HEADRACE_BENCH_MARK"
POLL_S = 0.1
GRACE_S = 5.0
MIB = 2**20
LAST_LINES = 30
ROLES = tuple(
    (role, re.compile(pattern, re.IGNORECASE))
    for role, pattern in (
        ("haproxy", r"^\S*/?haproxy\b.*haproxy\.cfg|^haproxy\b"),
        ("gateway replica", r"ServeReplica:gateway:"),
        ("model replica", r"ServeReplica:[^:]+:(model|device)\b"),
        ("pool replica", r"ServeReplica:headrace-pool:pool\b"),
        ("anchor", r"ServeReplica:[^:]+:anchor\b"),
        ("ingress replica", r"ServeReplica:[^:]+:ingress\b"),
        ("controller", r"ServeController"),
        ("haproxy manager", r"HAProxyManager"),
        ("proxy", r"ProxyActor"),
        ("registry", r"RegistryActor"),
        ("autoscaler", r"ray::AutoscalerActor"),
        ("idle worker", r"ray::IDLE"),
        ("gcs", r"gcs_server"),
        ("dashboard", r"dashboard|RuntimeEnvAgent"),
        ("raylet", r"raylet/raylet"),
        ("ray's monitors", r"log_monitor|autoscaler/_private/monitor|multiprocessing\."),
        ("triton", r"bin/tritonserver"),
        ("triton model", r"triton_python_backend_stub"),
        ("host", r"host_process|app\.py"),
        ("command line", r"bin/headrace|deployments\.cli"),
    )
)

Settings = dict[str, Any]


class ServerTrouble(RuntimeError):
    """The server did not start, or left processes behind."""


def command_line() -> list[str]:
    """The installed `headrace`, or the same entry point if it is not installed."""
    installed = Path(sys.executable).with_name("headrace")
    if installed.exists():
        return [str(installed)]
    return [sys.executable, "-c", "from deployments.cli import main; main(prog_name='headrace')"]


def simulate(path: Path, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """What `headrace simulate --json` prints. Raises RuntimeError where it refuses."""
    command = [*command_line(), "simulate", str(path), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-2000:] or f"simulate exited {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# ---- processes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """The resources that one process has used, at one moment."""

    pid: int
    role: str
    cpu_s: float  # user and system
    rss_bytes: int
    pss_bytes: int  # proportional set size, in which shared pages count once; 0: not asked for


def role_of(command_line: str) -> str:
    return next((role for role, pattern in ROLES if pattern.search(command_line)), "other")


def title_of(process: psutil.Process) -> str:
    """Raises psutil.Error."""
    return " ".join(process.cmdline()) or process.name()


def marked(mark: str) -> list[psutil.Process]:
    """Every live process with the mark but this one; reads `/proc/PID/environ`."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
            if wanted in environ.split(b"\0") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]


def usage(processes: Iterable[psutil.Process], *, memory: bool = False) -> list[ProcessUsage]:
    """`memory`: also reads the proportional set size, which takes some ms for each process."""
    seen = []
    for process in processes:
        with contextlib.suppress(OSError, psutil.Error):
            times, rss = process.cpu_times(), process.memory_info().rss
            pss = process.memory_full_info().pss if memory else 0
            role = role_of(title_of(process))
            seen.append(ProcessUsage(process.pid, role, times.user + times.system, rss, pss))
    return seen


def cpu_between(before: Iterable[ProcessUsage], after: Iterable[ProcessUsage]) -> dict[str, float]:
    """CPU seconds by role. A process that ended in between is not counted, a new one completely."""
    earlier = {each.pid: each.cpu_s for each in before}
    spent: dict[str, float] = {}
    for each in after:
        more_s = each.cpu_s - earlier.get(each.pid, 0.0)
        spent[each.role] = spent.get(each.role, 0.0) + more_s
    return spent


def memory_by_role(usages: Sequence[ProcessUsage]) -> dict[str, tuple[int, int, int]]:
    """By role: the number of processes, their resident bytes, their proportional bytes."""
    number = Counter(each.role for each in usages)
    return {
        role: (
            count,
            sum(each.rss_bytes for each in usages if each.role == role),
            sum(each.pss_bytes for each in usages if each.role == role),
        )
        for role, count in number.items()
    }


# ---- any server ----------------------------------------------------------------------------------


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

    def usage(self, *, memory: bool = False) -> list[ProcessUsage]:
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


def post(url: str, body: object, timeout_s: float) -> bytes:
    """The answer to one request with this JSON. Raises OSError, also for a status of refusal."""
    sent = json.dumps(body).encode()
    asked = urllib.request.Request(url, sent, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=timeout_s) as answer:
        return bytes(answer.read())


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
        ended, late = child.poll() is not None, time.perf_counter() > deadline
        if ended or late:
            last = "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
            limit = f"is not ready after {launch.start_limit_s:g} s"
            how = f"ended with {child.returncode}" if ended else limit
            raise ServerTrouble(f"{launch.name} {how}:\n{last}")
        time.sleep(POLL_S)


def stop(launch: Launch, child: subprocess.Popen[bytes], mark: str) -> list[str]:
    """Ends all processes with the mark; returns those that the server itself had left running."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(launch.stop_limit_s)
    left = remaining(mark)
    names = [f"{process.pid} {describe(process)}" for process in left]
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    for process in psutil.wait_procs(left, timeout=GRACE_S)[1]:
        with contextlib.suppress(psutil.Error):
            process.kill()
    child.wait()
    return names


def remaining(mark: str) -> list[psutil.Process]:
    """Processes with the mark that are still there after a while: a process whose parent has just
    ended notices that by a closed pipe (as the dashboard's fork server does)."""
    deadline = time.perf_counter() + GRACE_S
    while (left := marked(mark)) and time.perf_counter() < deadline:
        time.sleep(POLL_S)
    return left


def describe(process: psutil.Process) -> str:
    try:
        return title_of(process)[:80]
    except psutil.Error:
        return "(gone)"


# ---- Headrace ------------------------------------------------------------------------------------


def example(name: str) -> Settings:
    """The settings of `examples/NAME.yaml`."""
    settings: Settings = yaml.safe_load(Path("examples", f"{name}.yaml").read_text())
    return settings


def changed(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """A copy with `changes` applied, by dotted path: `{"models.minilm.precision": "bf16"}`."""
    result: Settings = copy.deepcopy(dict(settings))
    for path, value in changes.items():
        *parents, leaf = path.split(".")
        section = result
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = value
    return result


def on_free_ports(settings: Mapping[str, Any]) -> Settings:
    """All ports are free ones (also HAProxy's two and the metrics port), so that a bench never
    meets another server."""
    names = ("port", "metrics_port", "haproxy_stats_port", "haproxy_metrics_port")
    return changed(settings, {f"gateway.{name}": free_port() for name in names})


def homes(home: Path = HOME_DIR) -> dict[str, str]:
    """The environment by which the command line finds a bench's server."""
    return {
        "XDG_CACHE_HOME": str(home.absolute() / "cache"),
        "XDG_STATE_HOME": str(home.absolute() / "state"),
    }


@contextlib.contextmanager
def headrace(
    settings: Mapping[str, Any], *, name: str = "headrace", home: Path = HOME_DIR
) -> Iterator[RunningServer]:
    """Yields the running server once every declared model is hot. `home`: for cache and state; an
    empty one makes a cold start."""
    written = on_free_ports(settings)
    SETTINGS_DIR.mkdir(parents=True, exist_ok=True)
    file = SETTINGS_DIR / f"{name}.yaml"
    file.write_text(yaml.safe_dump(written, sort_keys=False))
    url = f"http://127.0.0.1:{written['gateway']['port']}"
    environ = homes(home)
    command = [*command_line(), "serve", str(file)]
    launch = Launch(name, command, url, f"{url}/readyz", environ, strict=True)
    with launched(launch) as running:
        yield running
