"""`headrace serve` in the foreground: starts the host process, shows its progress, passes signals.

The host runs in a session of its own. The first Ctrl-C or SIGTERM asks it to drain; further ones
change nothing (draining is bounded by gateway.drain_s). The host notices when this process dies,
because its standard input closes. When the host is killed, or cannot end what it began, this
process ends that (`server_guard`). Then this process ends within `_LAST_WORDS_S`, even if nobody
reads its output.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import click
import psutil

from deployments.control.supervisor import ray_processes
from deployments.control.supervisor.server_guard import ServerGuard
from deployments.settings_files.load import load
from deployments.tools.console.terminal import StartupDisplay

_LAST_WORDS_S = 5.0


def serve(settings_path: Path, *, port: int | None, host: str | None) -> int:
    """The exit code: 0 after a clean stop, 1 when the start failed. Raises SettingsErrors."""
    settings = load(settings_path)
    # -P: modules in the user's folder must not be imported in place of this package's.
    command = [
        sys.executable,
        "-P",
        "-m",
        "deployments.control.supervisor.host_process",
        str(settings_path),
    ]
    command += ["--port", str(port)] if port is not None else []
    command += ["--host", host] if host is not None else []
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _ask_to_stop(child))
    guard = ServerGuard(child, port or settings.gateway.port, _show_error)
    with _ends_with(child, guard, _LAST_WORDS_S):
        _show_all(child, list(settings.models), guard)
        code = _exit_code(child.wait())
        if ended := guard.clear():
            _show_error(ended)
        return code


def _show_all(child: subprocess.Popen[str], models: list[str], guard: ServerGuard) -> None:
    """Show the host's messages until it ends."""
    assert child.stdout is not None
    events = _guarded(_events(child.stdout), guard)
    with StartupDisplay(models) as progress:
        last = _until_ready(events, progress)
    if last.get("event") == "ready":
        _show(last["message"], err=False)
    else:
        _say(last)
    for event in events:
        _say(event)


def _guarded(events: Iterator[dict[str, Any]], guard: ServerGuard) -> Iterator[dict[str, Any]]:
    """The events, without the one that tells which processes to guard."""
    for event in events:
        if event["event"] != "cluster":
            yield event
            continue
        with contextlib.suppress(psutil.NoSuchProcess):  # the host finds that out by itself
            guard.watch([ray_processes.of_event(each) for each in event["processes"]])


@contextlib.contextmanager
def _ends_with(child: subprocess.Popen[str], guard: ServerGuard, limit_s: float) -> Iterator[None]:
    """End what the host left as soon as the host has ended, since that may hold the host's output
    open. End this process at the latest `limit_s` seconds later. A write to a terminal or pipe that
    nobody reads blocks for ever, and a supervisor would wait for a dead server."""
    over = threading.Event()

    def watch() -> None:
        code = child.wait()
        guard.clear()
        if not over.wait(limit_s):
            os._exit(_ours(code))

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _ours(code: int) -> int:
    """This process's exit code for the host's: 1 if the host was ended by a signal."""
    return code if code >= 0 else 1


def _exit_code(code: int) -> int:
    """This process's exit code for the host's. Says so if the host was killed."""
    if code < 0:
        _show_error(f"the server's own process was ended by {signal.Signals(-code).name}")
    return _ours(code)


def _say(event: dict[str, Any]) -> None:
    if event.get("event") in ("phase", "failed", "log"):
        _show_error(event["message"])


def _show_error(text: str) -> None:
    _show(text, err=True)


def _show(text: str, *, err: bool) -> None:
    """Print the text. Errors are ignored: a full disk or a closed pipe must not end the server."""
    with contextlib.suppress(OSError):
        click.echo(text, err=err)


def _ask_to_stop(child: subprocess.Popen[str]) -> None:
    """Ask the host to drain. If it has already ended, end this process, which could only be
    blocked on output that nobody reads."""
    code = child.poll()
    if code is None:
        child.send_signal(signal.SIGTERM)
    else:
        os._exit(_ours(code))


def _events(lines: IO[str]) -> Any:
    """The host's events, one JSON line each; other lines, printed by libraries, are skipped."""
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            yield event


def _until_ready(events: Any, progress: StartupDisplay) -> dict[str, Any]:
    """Show phases until the start is over. Returns the event that ended it: ready, failed, or the
    beginning of a stop; {} if the host ended without one."""
    for event in events:
        if event["event"] == "progress":
            for model in event["models"]:
                progress.update(model["model"], model["phase"], model["fraction"], model["detail"])
        elif event["event"] == "log":
            _say(event)
        elif event["event"] == "phase" and event.get("name") in ("ray", "deploy"):
            progress.server(event["message"])
        elif event.get("name") not in ("ray", "deploy"):
            last: dict[str, Any] = event
            return last
    return {}
