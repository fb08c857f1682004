"""The ports a start needs: which they are, whether they are free, and who has them if not.

Our own leftovers (a HAProxy that outlived its cluster) are ended; anything foreign is named, and
the start refused. Metrics ports are not in the list: a busy one is retried, never fatal.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import yaml

from deployments.cluster import haproxy, run_folder, state_file
from deployments.cluster.listeners import listener
from deployments.cluster.ray_env import resolved_ingress
from deployments.settings import GatewaySettings, Settings, TenantsSettings


def of(gateway: GatewaySettings) -> dict[str, int]:
    """Ports by what they are for."""
    ports = {"http": gateway.port}
    if resolved_ingress(gateway.ingress) == "haproxy":
        ports["haproxy_stats"] = gateway.haproxy_stats_port
        ports["haproxy_metrics"] = gateway.haproxy_metrics_port
    return ports


def free_or_say(gateway: GatewaySettings, states: Path) -> list[str]:
    """A sentence for every port that somebody else holds, or for a host that is not here; empty
    when all are free."""
    running = state_file.read(gateway.port, states)
    if running is not None and running.alive:
        return [_served(gateway.port, running.server.pid)]
    left = haproxy.find(run_folder.path_of(gateway.port))
    for process in left:
        if haproxy.is_managed(process):
            return [_served(gateway.port, process.pid)]
    haproxy.end(left)
    if unusable := _unusable(gateway.host):
        return [unusable]
    held = ((what, port, listener(gateway.host, port)) for what, port in of(gateway).items())
    return [_sentence(what, port, str(who)) for what, port, who in held if who is not None]


def _unusable(host: str) -> str | None:
    """Why nobody can listen on `host` here; None where one can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return f"gateway.host {host} is no address of this machine ({why}); try 127.0.0.1"
    return None


def _served(port: int, pid: int) -> str:
    return (
        f"port {port} is served by Headrace already (process {pid}); "
        f"`headrace stop --port {port}` ends it, `headrace apply` changes its models"
    )


def _sentence(what: str, port: int, who: str) -> str:
    setting = "gateway.port" if what == "http" else f"gateway.{what}_port"
    return f"port {port} ({setting}) is taken by {who}; end it or choose another port"


def any_free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def write_tenants(settings: Settings, path: Path) -> None:
    """Puts what gateways take up while they run where they re-read it, in one rename."""
    taken_up = settings.model_dump(mode="json", include=set(TenantsSettings.model_fields))
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as stream:
        stream.write(yaml.safe_dump(taken_up))
    os.replace(new, path)
