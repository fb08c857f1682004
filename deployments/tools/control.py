"""Commands on a server of this machine, by its control socket: `status`, `apply`, `diff`, `stop` …

Each request is a connection to the host's Unix socket in its run folder, with one JSON line each
way, so these commands need not import Ray. For Ray clusters see `remote.py`; on Kubernetes the
cluster's own tools do this.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import click

from deployments.control.registry.server_status import StatusSnapshot
from deployments.control.supervisor import orphaned_processes, server_files
from deployments.control.supervisor.server_files import NoServer, ServerState, find, state_folder
from deployments.settings.load import load

WaitFor = Callable[[Mapping[str, int], int], int]
_ANSWER_S = 15.0
_APPLY_S = 900.0
_STOP_S = 86_400.0
_OPTIONAL_S = 30.0  # that `apply` waits for optional models: only to say what became of them
_LOOKS_S = 0.5


class ServerRefused(Exception):
    """The server's host refused; the message says why."""


def ask(port: int, request: dict[str, Any], timeout_s: float = _ANSWER_S) -> dict[str, Any]:
    """The answer of the host on `port` to one request. Raises NoServer or ServerRefused."""
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
                f"the server did not answer within {timeout_s:g} s; it may still do what was asked"
            ) from late
        except OSError:
            line = b""
    answer: dict[str, Any] = (
        json.loads(line) if line else {"error": "the server ended before it answered"}
    )
    if "error" in answer:
        raise ServerRefused(answer["error"])
    return answer


def status(port: int | None) -> StatusSnapshot:
    """The status of the server on `port`, or of the only one. Raises NoServer, ServerRefused."""
    state = find(port, state_folder())
    return ask(state.port, {"do": "status"})  # type: ignore[return-value]


def apply(path: Path, port: int | None, wait_for: WaitFor | None = None) -> int:
    """Apply a settings file to a running server, and print what changed. Returns the exit code:
    that of `wait_for`, if rollouts began. Raises SettingsErrors, NoServer."""
    load(path)
    state = find(port, state_folder())
    try:
        changes = ask(state.port, {"do": "apply", "path": str(path.resolve())}, _APPLY_S)
    except ServerRefused as refused:
        click.echo(str(refused), err=True)
        return 1
    rollouts, optional = changes.pop("rollouts", {}), changes.pop("optional", [])
    _say(changes)
    if wait_for:
        _say_optional(optional, state.port)
    return wait_for(rollouts, state.port) if rollouts and wait_for else 0


def _say_optional(names: Collection[str], port: int) -> None:
    """Say how the starts of optional models end; of those that take long, where to look later."""
    waits, end = set(names), time.monotonic() + _OPTIONAL_S
    while waits and time.monotonic() < end:
        models = {model["name"]: model for model in status(port)["models"]}
        for name in sorted(waits & models.keys()):
            found = models[name]
            if found["state"] in ("ready", "asleep", "failed"):
                waits.remove(name)
            if found["state"] == "failed":
                click.echo(f"{name} is optional and cannot start: {found['reason']}")
        waits &= models.keys()
        time.sleep(_LOOKS_S)
    for name in sorted(waits):
        click.echo(
            f"{name} is optional and still starting after {_OPTIONAL_S:g} s; "
            "`headrace status` says how far it is"
        )


def diff(path: Path, port: int | None) -> int:
    """Print what `apply` would restart, and why. Returns the exit code. Raises SettingsErrors,
    NoServer and ServerRefused."""
    load(path)
    state = find(port, state_folder())
    changes = ask(state.port, {"do": "diff", "path": str(path.resolve())}, _APPLY_S)
    reasons = changes.pop("reasons")
    _say(changes)
    for reason in reasons:
        click.echo(f"  {reason}")
    return 0


def freeze(frozen: bool, port: int | None) -> int:
    """Freeze the controllers of all models, or let them learn again. Returns the exit code. Does
    not wait for changes under way. Raises NoServer."""
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
    """Ask the host to drain and end, and wait for it; also end processes that a killed host left.
    Returns the exit code. Raises NoServer if there is neither, ServerRefused if one does not end.
    """
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
    """End the processes that dead servers left, on one port or on all, with a line for each server.
    Returns how many servers had left some. Raises ServerRefused if a process does not end."""
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
