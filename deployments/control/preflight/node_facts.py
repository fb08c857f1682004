"""Facts about a node that serving depends on, collected on the node by a Ray actor.

Only facts: `preflight` judges them. A node is asked for environment variables by name and returns
no others, because an environment holds secrets. Nothing is changed: folders are looked at, not
made.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from deployments.control.ingress import haproxy
from deployments.control.supervisor import ports
from deployments.settings_files.made import cache_dir

UNLIMITED = -1
_HAPROXY_CONFIG = "/tmp/haproxy-serve/haproxy.cfg"  # Serve's default
_LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """What a node is asked about."""

    variables: tuple[str, ...]  # names of environment variables
    ports: Mapping[str, tuple[str, int]]  # purpose: address and number

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> NodeQuery:
        addresses = {what: (str(host), int(port)) for what, (host, port) in data["ports"].items()}
        return cls(tuple(data["variables"]), addresses)


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """`path`, or the nearest folder above it that exists."""

    path: str
    writable: bool
    free_bytes: int


@dataclass(frozen=True, slots=True)
class BusyPort:
    """A port that a process listens on."""

    what: str  # purpose
    port: int
    who: str
    serves: bool  # it is Serve's own process, which runs already


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node."""

    node: str
    address: str
    head: bool
    error: str = ""  # why there are no further facts; "": there are
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    wrapper: str | None = None  # why HAProxy would not run well; None: it would
    folders: tuple[FolderFacts, ...] = ()
    open_files: int = UNLIMITED  # the hard limit
    busy: tuple[BusyPort, ...] = ()
    local_ports: tuple[int, int] | None = None  # that the system gives to outgoing connections
    clock_ahead_s: float = 0.0  # of the head's, give or take `clock_error_s`
    clock_error_s: float = 0.0

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> NodeFacts:
        """From the JSON of `asdict`."""
        local = data.get("local_ports")
        return cls(
            **{
                **data,
                "folders": tuple(FolderFacts(**each) for each in data.get("folders", ())),
                "busy": tuple(BusyPort(**each) for each in data.get("busy", ())),
                "local_ports": None if local is None else (int(local[0]), int(local[1])),
            }
        )


def collected(query: NodeQuery, environ: Mapping[str, str]) -> dict[str, Any]:
    """The fields of `NodeFacts` that the node itself knows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    config = environ.get("RAY_SERVE_HAPROXY_CONFIG_FILE_LOC") or _HAPROXY_CONFIG
    wrapper = None
    # A finding on the environment reports the variable if it is missing.
    if path := environ.get("RAY_SERVE_HAPROXY_BINARY_PATH"):
        with tempfile.TemporaryDirectory(prefix="headrace-check-") as made:
            wrapper = haproxy.problem(path, Path(made))
    return {
        "versions": versions(),
        "environment": {n: environ[n] for n in query.variables if n in environ},
        "wrapper": wrapper,
        "folders": (folder(cache_dir()), folder(Path(config).parent)),
        "open_files": UNLIMITED if hard == resource.RLIM_INFINITY else hard,
        "busy": tuple(
            BusyPort(what, port, str(who), is_serves_own(who))
            for what, (host, port) in query.ports.items()
            if (who := ports.listener(host, port))
        ),
        "local_ports": local_ports(),
    }


def versions() -> dict[str, str]:
    """The versions of headrace, Ray and Python; "none" for what is not installed."""
    found = {name: _version(name) for name in ("headrace", "ray")}
    return found | {"python": platform.python_version()}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def folder(path: Path) -> FolderFacts:
    """Whether the folder can be written, or made."""
    there = next(each for each in (path, *path.parents) if each.exists())
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return FolderFacts(str(path), writable, shutil.disk_usage(there).free)


def is_serves_own(who: ports.PortListener) -> bool:
    """Whether it is a HAProxy with Serve's file, or a process that Ray named."""
    command = " ".join(who.command)
    return command.startswith("ray::") or (who.name == "haproxy" and "haproxy.cfg" in command)


def local_ports(path: Path = _LOCAL_PORTS) -> tuple[int, int] | None:
    try:
        first, last = path.read_text(encoding="ascii").split()
        return int(first), int(last)
    except (OSError, ValueError):
        return None
