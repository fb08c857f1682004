"""The sockets below the data channel: addresses, options that find a dead peer, TLS.

A peer that vanished (its machine lost power, the network was cut) acknowledges neither keep-alives
nor retransmitted data. A caller that asks `is_dead` every second finds such a peer within about
3 s. TCP's own limit (TCP_USER_TIMEOUT) is longer, because it also counts the time in which a living
process does not read, and an overloaded process may not read for seconds. Other checks bound that
time.
Source: tcp(7), TCP_KEEPIDLE, TCP_USER_TIMEOUT and TCP_INFO; RFC 5482.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from struct import Struct

from deployments.contract.channel.frames import STALLED_S
from deployments.settings.channel import ChannelTls

FOUND_DEAD_S = 2.0
_TRIES = 2  # unanswered ones that mean death; a single one may still be on its way
# Of Linux' tcp_info: retransmits, probes, ms since data came, ms since an ACK came.
_INFO = Struct("=2xBB48xII")
_OPTIONS = {
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": 1,
    "TCP_KEEPINTVL": 1,
    "TCP_KEEPCNT": 1,
    "TCP_USER_TIMEOUT": int(STALLED_S * 1000),
}


def find_dead_peers(transport: asyncio.BaseTransport) -> None:
    """Set the options that find dead peers, as far as this system has them."""
    sock = _tcp(transport)
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        option = getattr(socket, name, None)
        if option is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


def is_dead(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has not answered for FOUND_DEAD_S; False on systems that do not tell."""
    sock = _tcp(transport)
    if sock is None or sys.platform != "linux":
        return False
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    except OSError:
        return False  # the socket is closed
    again, probes, data_ms, ack_ms = _INFO.unpack(info)
    silent = bool(min(data_ms, ack_ms) > FOUND_DEAD_S * 1000)
    return silent and max(again, probes) >= _TRIES


def _tcp(transport: asyncio.BaseTransport) -> socket.socket | None:
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    return sock


def server_tls(tls: ChannelTls | None) -> ssl.SSLContext | None:
    """The replica's context: gateways must show a certificate of the same authority. Raises
    ValueError for files that cannot be used."""
    if tls is None:
        return None
    context = _context(ssl.Purpose.CLIENT_AUTH, tls)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(tls: ChannelTls | None) -> ssl.SSLContext | None:
    """The gateway's context. Replicas are identified by their key and have no host name of their
    own, so the name in their certificate is not checked. Raises ValueError for files that cannot be
    used."""
    return None if tls is None else _context(ssl.Purpose.SERVER_AUTH, tls)


def _context(purpose: ssl.Purpose, tls: ChannelTls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(purpose, cafile=tls.authority)
        context.check_hostname = False
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as fault:
        raise ValueError(
            f"gateway.channel.tls: {tls.certificate}, {tls.key} and {tls.authority} cannot be "
            f"used: {fault}"
        ) from fault
    return context


def address_of(host: str, port: int) -> str:
    """The form "host:port" of URLs, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(address: str) -> tuple[str, int]:
    """The inverse of `address_of`. Raises ValueError for anything else."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
