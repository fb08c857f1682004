"""The ports a start needs: which they are, whether they are free, and who listens there if not.

A listener counts when binding `host:port` would meet it: the same address, or either side bound to
every interface, IPv4 or IPv6. The system tells whose it is where it may; else binding and
connecting still tell that somebody is there. Nothing is ended here. Metrics ports are not in the
list: a busy one is retried, never fatal.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from deployments.cluster.ray_env import resolved_ingress
from deployments.settings.gateway import GatewaySettings

CONNECT_TIMEOUT_S = 0.5
SOMEBODY = "another user's process"


def of(gateway: GatewaySettings) -> dict[str, int]:
    """Ports by what they are for."""
    ports = {"http": gateway.port}
    if resolved_ingress(gateway.ingress) == "haproxy":
        ports["haproxy_stats"] = gateway.haproxy_stats_port
        ports["haproxy_metrics"] = gateway.haproxy_metrics_port
    return ports


def host_of(what: str, gateway: GatewaySettings) -> str:
    """The address that `what`, of those that `of` names, listens on."""
    return gateway.host if what == "http" else gateway.haproxy_admin_host


def refusal(gateway: GatewaySettings) -> str | None:
    """Why a server with these settings cannot listen here: a host is not this machine's, or
    another process holds one of its ports. None when it can."""
    ha_proxy = resolved_ingress(gateway.ingress) == "haproxy"
    for setting in ("host", "haproxy_admin_host") if ha_proxy else ("host",):
        if unusable := _unusable(setting, getattr(gateway, setting)):
            return unusable
    for what, port in of(gateway).items():
        if who := listener(host_of(what, gateway), port):
            setting = "gateway.port" if what == "http" else f"gateway.{what}_port"
            return f"port {port} ({setting}) is taken by {who}; end it or choose another port"
    return None


def _unusable(setting: str, host: str) -> str | None:
    """Why nobody can listen on `host` here; None where one can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return f"gateway.{setting} {host} is not an address of this machine ({why}); try 127.0.0.1"
    return None


def any_free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class Listener:
    """`pid` is None where the system does not say whose it is."""

    port: int
    address: str
    pid: int | None = None
    name: str = SOMEBODY
    command: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.pid is None:
            return f"{self.name} ({self.address}:{self.port})"
        return f"{self.name}, pid {self.pid} ({' '.join(self.command)[:120]})"


def listener(host: str, port: int) -> Listener | None:
    """Whoever would be met on `host:port`; one with a known pid first."""
    wanted = _addresses(host)
    met = [
        _described(pid, address, port)
        for pid, address, at in _listening()
        if at == port and _meet(wanted, address)
    ]
    met.sort(key=lambda each: each.pid is None)
    if met:
        return met[0]
    if any(_bind_refused(address, port) or _answers(address, port) for address in wanted):
        return Listener(port, host)
    return None


def _addresses(host: str) -> set[str]:
    """Numeric addresses of a host name; the name itself where it has none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return {host}
    return {_plain(str(entry[4][0])) for entry in found}


def _plain(address: str) -> str:
    """`::ffff:127.0.0.1` is 127.0.0.1; scope ids are dropped."""
    try:
        parsed = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return address
    mapped = getattr(parsed, "ipv4_mapped", None)
    return str(mapped or parsed)


def _meet(wanted: set[str], address: str) -> bool:
    wildcards = {"0.0.0.0", "::", "*"}
    return address in wanted or address in wildcards or bool(wanted & wildcards)


def _listening() -> Iterator[tuple[int | None, str, int]]:
    """pid, address, port of every listening TCP socket that the system shows us."""
    try:
        for found in psutil.net_connections(kind="tcp"):
            if found.status == psutil.CONN_LISTEN and found.laddr:
                yield found.pid, _plain(found.laddr.ip), found.laddr.port
    except psutil.AccessDenied:
        # macOS shows the whole table to root alone; each process of our own is open to us.
        yield from _listening_of_own_processes()


def _listening_of_own_processes() -> Iterator[tuple[int | None, str, int]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            for found in process.net_connections(kind="tcp"):
                if found.status == psutil.CONN_LISTEN and found.laddr:
                    yield process.pid, _plain(found.laddr.ip), found.laddr.port


def _described(pid: int | None, address: str, port: int) -> Listener:
    if pid is None:
        return Listener(port, address)
    try:
        process = psutil.Process(pid)
        return Listener(port, address, pid, process.name(), tuple(process.cmdline()))
    except psutil.Error:
        return Listener(port, address, pid)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _bind_refused(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket(_family(address)) as probe:
        # Without it a connection that has just ended would count as a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _answers(address: str, port: int) -> bool:
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    try:
        socket.create_connection((loopback, port), CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True
