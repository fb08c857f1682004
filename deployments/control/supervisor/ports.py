"""Which ports does a start need, are they free, and who listens on those that are not?

A listener counts if binding `host:port` would conflict with it: the same address, or either side
bound to every interface, IPv4 or IPv6. The system tells whose listener it is where it may. Where it
may not, binding and connecting still show that there is one. Nothing is ended here. Metrics ports
are not in the list: a busy metrics port is retried, never fatal.

Ports that callers do not know (`UNCALLED`) give way: where the settings name none and the default
is taken, as by a second server, a free one takes its place.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import itertools
import random
import socket
from collections.abc import Iterator, Set
from dataclasses import dataclass

import psutil

from deployments.process.loopback import LOOPBACK, reached_at
from deployments.settings.gateway import GatewaySettings

CONNECT_TIMEOUT_S = 0.5
_CHOICE = range(20_000, 30_000)
UNCALLED = ("haproxy_stats_port", "haproxy_metrics_port", "metrics_port")
_CALLERS = {"http": "gateway.port", "grpc": "gateway.grpc.port"}
_WILDCARDS = {"0.0.0.0", "::", "*"}
SOMEBODY = "another user's process"


def of(gateway: GatewaySettings) -> dict[str, int]:
    """The ports that a start needs, by purpose."""
    ports = {"http": gateway.port}
    if gateway.ingress != "direct":
        ports["haproxy_stats"] = gateway.haproxy_stats_port
        ports["haproxy_metrics"] = gateway.haproxy_metrics_port
    if gateway.grpc is not None:
        ports["grpc"] = gateway.grpc.port
    return ports


def host_of(what: str, gateway: GatewaySettings) -> str:
    """The address that the port for `what` (a key of `of`) is bound to."""
    return gateway.host if what in _CALLERS else gateway.haproxy_admin_host


def refusal(gateway: GatewaySettings) -> str | None:
    """Why a server with these settings cannot listen here: a host is not this machine's, or another
    process holds one of its ports. None if it can."""
    ha_proxy = gateway.ingress != "direct"
    for setting in ("host", "haproxy_admin_host") if ha_proxy else ("host",):
        if unusable := _unusable(setting, getattr(gateway, setting)):
            return unusable
    taken = [
        f"port {port} ({setting_of(what)}) is taken by {who}"
        for what, port in of(gateway).items()
        if (who := listener(host_of(what, gateway), port))
    ]
    if not taken:
        return None
    ending = "end it or choose another port" if len(taken) == 1 else "end them or choose others"
    return "\n".join(taken) + f"; {ending}"


def setting_of(what: str) -> str:
    """The setting of the port for `what`."""
    return _CALLERS.get(what, f"gateway.{what}_port")


def free_instead(gateway: GatewaySettings) -> dict[str, int]:
    """Free ports for the settings in `UNCALLED` that the file does not name and whose defaults are
    taken."""
    found: dict[str, int] = {}
    given: set[int] = set()
    names = UNCALLED if gateway.ingress != "direct" else UNCALLED[-1:]
    for name in names:
        if name in gateway.model_fields_set:
            continue
        host, count = gateway.haproxy_admin_host, 1
        if name == "metrics_port":
            host, count = gateway.metrics_host or LOOPBACK, gateway.replicas  # one for each gateway
        first = getattr(gateway, name)
        if any(listener(host, port) for port in range(first, first + count)):
            found[name] = first = _consecutive_free(count, given)
            given.update(range(first, first + count))
    return found


def _consecutive_free(count: int, given: Set[int]) -> int:
    """The first of `count` consecutive ports that nobody listens on and that are not in `given`."""
    return next(
        first
        for first in iter(any_free, None)
        if not any(at in given or _bind_refused(LOOPBACK, at) for at in range(first, first + count))
    )


def _unusable(setting: str, host: str) -> str | None:
    """Why nobody can listen on `host` here; None if one can."""
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
    """A port that was free on the loopback address a moment ago."""
    return several_free(1)[0]


def several_free(count: int) -> list[int]:
    """`count` ports, no two the same, that were free on the loopback address a moment ago. They lie
    below those that systems give to connections and to listeners without a port of their own, so
    that nobody is given one before it is used."""
    tried = random.SystemRandom().sample(_CHOICE, len(_CHOICE))
    free = itertools.islice((port for port in tried if not _bind_refused(LOOPBACK, port)), count)
    return list(free)


@dataclass(frozen=True, slots=True)
class PortListener:
    """A process that listens. `pid` is None if the system does not tell whose it is."""

    port: int
    address: str
    pid: int | None = None
    name: str = SOMEBODY
    command: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.pid is None:
            return f"{self.name} ({self.address}:{self.port})"
        return f"{self.name}, pid {self.pid} ({' '.join(self.command)[:120]})"


def listener(host: str, port: int) -> PortListener | None:
    """The listener that binding `host:port` would conflict with; one with a known pid first."""
    wanted = _addresses(host)
    met = [
        _described(pid, address, port)
        for pid, address, at in _listening()
        if at == port and (address in wanted or ({address} | wanted) & _WILDCARDS)
    ]
    met.sort(key=lambda each: each.pid is None)
    if met:
        return met[0]
    if any(_bind_refused(address, port) or _answers(address, port) for address in wanted):
        return PortListener(port, host)
    return None


def _addresses(host: str) -> set[str]:
    """The numeric addresses of a host name; the name itself if it has none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return {host}
    return {_plain(str(entry[4][0])) for entry in found}


def _plain(address: str) -> str:
    """The address without scope id; `::ffff:127.0.0.1` becomes 127.0.0.1."""
    try:
        parsed = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return address
    mapped = getattr(parsed, "ipv4_mapped", None)
    return str(mapped or parsed)


def _listening() -> Iterator[tuple[int | None, str, int]]:
    """Pid, address and port of every listening TCP socket that the system shows this process."""
    try:
        for found in psutil.net_connections(kind="tcp"):
            if found.status == psutil.CONN_LISTEN and found.laddr:
                yield found.pid, _plain(found.laddr.ip), found.laddr.port
    except psutil.AccessDenied:
        # macOS shows the whole table to root only, but each of the user's own processes.
        yield from _listening_of_own_processes()


def _listening_of_own_processes() -> Iterator[tuple[int | None, str, int]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            for found in process.net_connections(kind="tcp"):
                if found.status == psutil.CONN_LISTEN and found.laddr:
                    yield process.pid, _plain(found.laddr.ip), found.laddr.port


def _described(pid: int | None, address: str, port: int) -> PortListener:
    if pid is None:
        return PortListener(port, address)
    try:
        process = psutil.Process(pid)
        return PortListener(port, address, pid, process.name(), tuple(process.cmdline()))
    except psutil.Error:
        return PortListener(port, address, pid)


def _bind_refused(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family) as probe:
        # Otherwise a connection that has just ended would count as a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((reached_at(address), port), CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True
