"""The command line's way to a running Headrace on this machine: its host's control socket.

One request a connection, one JSON line each way, over a Unix socket in its run folder; so
`status`, `apply`, `freeze` and `stop` need not import Ray. On Kubernetes the same is done by the
cluster's own means.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from deployments.cluster import orphaned_processes, server_files
from deployments.cluster.server_files import NoServer, ServerState, find, state_folder
from deployments.contract.server_status import StatusSnapshot
from deployments.settings.load import load

WaitFor = Callable[[Mapping[str, int], int], int]
_ANSWER_S = 15.0
_APPLY_S = 900.0
_STOP_S = 86_400.0


class ServerRefused(Exception):
    """The host refused; the message says why."""


def ask(port: int, request: dict[str, Any], timeout_s: float = _ANSWER_S) -> dict[str, Any]:
    """One question to the host on `port`. Raises NoServer or ServerRefused."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as conn:
        conn.settimeout(timeout_s)
        try:
            conn.connect(str(server_files.control_socket(port)))
        except OSError as error:
            raise NoServer(f"the server on port {port} is starting or stopping") from error
        try:
            conn.sendall(json.dumps(request).encode() + b"\n")
            with conn.makefile("rb") as lines:
                line = lines.readline()
        except TimeoutError as late:
            raise ServerRefused(
                f"no answer within {timeout_s:g} s; it may still come about"
            ) from late
        except OSError:
            line = b""
    answer: dict[str, Any] = json.loads(line) if line else {"error": "the host went away"}
    if "error" in answer:
        raise ServerRefused(answer["error"])
    return answer


def status(port: int | None) -> StatusSnapshot:
    """Of the server on `port`, or of the only one there is. Raises NoServer."""
    state = find(port, state_folder())
    return ask(state.port, {"do": "status"})  # type: ignore[return-value]


def apply(path: Path, port: int | None, wait_for: WaitFor | None = None) -> int:
    """Sends the file's path and prints what it changed; the exit code, which is that of `wait_for`
    where rollouts began. Raises SettingsErrors."""
    load(path)
    state = find(port, state_folder())
    try:
        changes = ask(state.port, {"do": "apply", "path": str(path.resolve())}, _APPLY_S)
    except ServerRefused as refused:
        click.echo(str(refused), err=True)
        return 1
    rollouts = changes.pop("rollouts", {})
    _say(changes)
    return wait_for(rollouts, state.port) if rollouts and wait_for else 0


def diff(path: Path, port: int | None) -> int:
    """Says what `apply` would restart, and why; the exit code. Raises SettingsErrors, NoServer and
    ServerRefused."""
    load(path)
    state = find(port, state_folder())
    changes = ask(state.port, {"do": "diff", "path": str(path.resolve())}, _APPLY_S)
    reasons = changes.pop("reasons")
    _say(changes)
    for reason in reasons:
        click.echo(f"  {reason}")
    return 0


def freeze(frozen: bool, port: int | None) -> int:
    """Freezes the controllers of all models, or lets them learn again; the exit code. Waits for no
    change that is under way. Raises NoServer."""
    state = find(port, state_folder())
    try:
        changes = ask(state.port, {"do": "freeze", "frozen": frozen}, _APPLY_S)
    except ServerRefused as refused:
        click.echo(str(refused), err=True)
        return 1
    _say(changes)
    return 0


def _say(changes: dict[str, Any]) -> None:
    said = {what: names for what, names in changes.items() if names and what != "reasons"}
    changed = [f"{what}: {', '.join(names)}" for what, names in said.items()]
    click.echo("; ".join(changed) or "nothing changed")


def stop(port: int | None) -> int:
    """Asks the host to drain and end, and waits for it; ends what a killed one left. The exit code.
    Raises NoServer when there is neither."""
    folder = state_folder()
    try:
        state = find(port, folder)
    except NoServer:
        several_run = port is None and any(state.alive for state in server_files.listing(folder))
        if several_run or not _clear_orphans(port, folder):
            raise
        return 0
    process = state.server.process()
    if process is not None:
        process.send_signal(signal.SIGTERM)
    _wait(state)
    _clear_orphans(state.port, folder)  # of a host that was killed meanwhile
    click.echo(f"stopped the server on port {state.port}")
    return 0


def _clear_orphans(port: int | None, folder: Path) -> int:
    """Of the dead servers on a port, or on all; how many of them had left processes, each of which
    a line was said of. Raises ServerRefused when one does not end."""
    known = server_files.listing(folder) if port is None else server_files.known(port, folder)
    dead = [state for state in known if not state.alive]
    try:
        sentences = [s for state in dead if (s := orphaned_processes.clear(state, folder))]
    except TimeoutError as error:
        raise ServerRefused(str(error)) from None
    for sentence in sentences:
        click.echo(sentence, err=True)
    return len(sentences)


def _wait(state: ServerState) -> None:
    end = time.monotonic() + _STOP_S
    began = reported = time.monotonic()
    while state.alive and time.monotonic() < end:
        time.sleep(0.1)
        if time.monotonic() - reported > 5:
            reported = time.monotonic()
            click.echo(f"draining ({reported - began:.0f} s)", file=sys.stderr)
