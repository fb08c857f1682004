"""Ray's own processes of a local cluster: do they live, do they answer?

`ray.init` starts GCS, raylet and dashboard as children of its process, and nothing of Ray starts
them again. Without GCS or raylet the rest of the cluster falls apart within a minute: replicas end,
nothing is replaced, and calls to Ray block. Without the dashboard no model could be changed any
more, though requests are served; so it is started again if it is missing or hangs, with the
command, the environment and so the address that it had. Without the raylet's agent that prepares
environments no process starts, and the raylet ends itself as soon as one should; the agent answers
SIGTERM by closing its port at once and waiting for minutes. Nothing here imports Ray.
Source: the protocol `grpc.health.v1`, whose empty message asks for the whole server. GCS and raylet
answer it, with and without Ray's token.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import grpc
import psutil

from deployments.control.supervisor.orphaned_processes import runs

_AGENT = "ray::RuntimeEnvAgent"
_CONNECT_S = 1.0
_NAMES = {"gcs_server": "control store (gcs_server)", "raylet": "node process (raylet)"}


@dataclass(frozen=True, slots=True)
class RayProcess:
    """One of Ray's own processes."""

    name: str  # for people
    address: str  # "host:port"
    process: psutil.Process
    checked: bool = True  # it answers health checks; False: it only takes connections

    def __str__(self) -> str:
        return f"{self.name}, process {self.process.pid}"

    def event(self) -> dict[str, object]:
        """What another process needs to watch it, as JSON: the fields of `of_event`."""
        return {
            "name": self.name,
            "address": self.address,
            "pid": self.process.pid,
            "checked": self.checked,
        }


def of_event(fields: Mapping[str, object]) -> RayProcess:
    """The process that an `event` describes. Raises psutil.NoSuchProcess if it has ended."""
    pid = int(str(fields["pid"]))
    checked = fields.get("checked", True) is True
    return RayProcess(str(fields["name"]), str(fields["address"]), psutil.Process(pid), checked)


def among(
    children: Sequence[psutil.Process], addresses: Mapping[str, str], agent_s: float = 0.0
) -> list[RayProcess]:
    """Ray's own processes among `children` of the process that started Ray. `addresses`: by the
    name that the kernel knows a process by (gcs_server, raylet). `agent_s`: how long the raylet's
    agent may take to listen; later it is not watched."""
    named = [(name, each) for each in children if (name := _name(each)) in _NAMES]
    agents: list[RayProcess] = []
    for raylet in [each for name, each in named if name == "raylet"]:
        end = time.monotonic() + agent_s
        while (found := _agent(raylet)) is None and time.monotonic() < end:
            time.sleep(_LOOKS_S)
        if found is not None:
            agents.append(found)
        elif agent_s:
            logger.warning("Ray's environment agent does not listen, and is not watched")
    return agents + [RayProcess(_NAMES[name], addresses[name], each) for name, each in named]


def _agent(raylet: psutil.Process) -> RayProcess | None:
    """The agent that prepares environments; None where it is not there yet."""
    try:
        children = raylet.children()
    except psutil.Error:
        return None
    for child in children:
        try:
            if not " ".join(child.cmdline()).startswith(_AGENT):
                continue
            for each in child.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN:
                    address = f"{each.laddr.ip}:{each.laddr.port}"
                    name = "environment agent (RuntimeEnvAgent)"
                    return RayProcess(name, address, child, checked=False)
        except psutil.Error:
            continue
    return None


def ended(processes: Sequence[RayProcess]) -> RayProcess | None:
    """The first that does not run any more, or takes no connections; None if all do."""
    return next((each for each in processes if not runs(each.process) or _refuses(each)), None)


def _refuses(each: RayProcess) -> bool:
    if each.checked:
        return False
    host, _, port = each.address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:  # it is slow, or this machine is short of something
        return False
    return False


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


# ---- whether they answer -------------------------------------------------------------------------

_METHOD = "/grpc.health.v1.Health/Check"
_SILENT = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)


def answers(address: str, limit_s: float) -> bool:
    """Whether the process at `address` ("host:port") answers within `limit_s`, whatever it says."""
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary(_METHOD, request_serializer=bytes, response_deserializer=bytes)
        try:
            check(b"", timeout=limit_s)
        except grpc.RpcError as error:
            return error.code() not in _SILENT
        return True


# ---- the dashboard -------------------------------------------------------------------------------

_PROGRAM = "dashboard.py"
_STARTS_S = 60.0  # its imports take 3 to 6 s on a busy machine
_LOOKS_S = 0.2
logger = logging.getLogger("headrace.host")


class DashboardProcess:
    """`found`: the process as Ray started it."""

    def __init__(self, found: psutil.Process) -> None:
        self._process = found
        self._command, self._environ, self._folder = found.cmdline(), found.environ(), found.cwd()

    def start_again(self, answers: Callable[[], bool]) -> None:
        """End it, if it hangs, and start another; returns once that answers, has ended too, or a
        minute is over. `answers` has a limit of its own."""
        self._start()
        end = time.monotonic() + _STARTS_S
        while not answers() and runs(self._process) and time.monotonic() < end:
            time.sleep(_LOOKS_S)

    def _start(self) -> None:
        why = "hangs and is ended" if runs(self._process) else "has ended"
        logger.warning("Ray's dashboard, process %d, %s; another starts", self._process.pid, why)
        if runs(self._process):
            self._process.kill()
            psutil.wait_procs([self._process], timeout=_STARTS_S)
        self._process = psutil.Popen(
            self._command,
            env=self._environ,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def own_dashboard(
    address: str, children: Sequence[psutil.Process] | None = None
) -> DashboardProcess | None:
    """The dashboard at this address among this process's children; None where it is another's."""
    port = f"--port={urlsplit(address).port}"
    for child in psutil.Process().children() if children is None else children:
        try:
            command = child.cmdline()
            if port in command and any(word.endswith(_PROGRAM) for word in command):
                return DashboardProcess(child)
        except psutil.Error:
            continue
    return None
