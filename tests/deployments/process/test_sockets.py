"""Addresses as they are told, and what a socket does with a peer that is gone or slow."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.process.sockets import (
    address_of,
    find_dead_peers,
    host_and_port,
    is_dead,
)

PORTS = st.integers(0, 65_535)


@given(st.ip_addresses().map(str), PORTS)
def test_an_address_is_read_as_it_was_written(host: str, port: int) -> None:
    assert host_and_port(address_of(host, port)) == (host, port)


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert address_of("::1", 80) == "[::1]:80"
    assert address_of("10.0.0.1", 80) == "10.0.0.1:80"


@pytest.mark.parametrize("address", ["", "host", "host:", "host:http", "[::1]"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        host_and_port(address)


class Transport:
    """As asyncio has them, as far as options need one."""

    def __init__(self, sock: socket.socket | None) -> None:
        self._sock = sock

    def get_extra_info(self, name: str) -> Any:
        return self._sock if name == "socket" else None


class Said:
    """A socket whose kernel says this of its connection."""

    family = socket.AF_INET

    def __init__(self, again: int, probes: int, data_ms: int, ack_ms: int) -> None:
        self._info = struct.pack("=2xBB48xII", again, probes, data_ms, ack_ms)

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        return self._info[:size]


def dead(sock: Any) -> bool:
    return is_dead(Transport(sock))  # type: ignore[arg-type]


def with_options(sock: socket.socket | None) -> None:
    find_dead_peers(Transport(sock))  # type: ignore[arg-type]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection; the first one has its options."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as there,
    ):
        here, _ = server.accept()
        with here:
            with_options(here)
            yield here, there


def test_a_transport_without_a_tcp_socket_is_left_alone() -> None:
    with_options(None)
    here, there = socket.socketpair()
    with here, there:
        with_options(here)
        assert here.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


def test_a_silent_peer_is_asked_every_second(pair: tuple[socket.socket, socket.socket]) -> None:
    here, _ = pair
    assert here.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_NODELAY):
        assert here.getsockopt(socket.IPPROTO_TCP, option) == 1


def test_a_peer_that_answers_is_alive_and_so_is_one_of_which_nothing_is_known(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    here, there = pair
    assert not dead(here)
    there.close()
    here.close()
    assert not dead(here)
    assert not dead(None)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (Said(2, 0, 2001, 2001), True),  # data was sent again, twice
        (Said(0, 2, 9000, 2001), True),  # keep-alives were sent, twice
        (Said(9, 9, 2001, 2000), False),  # it has acknowledged something since
        (Said(9, 9, 1, 9000), False),  # it has sent something since
        (Said(0, 0, 9000, 9000), False),  # it was asked nothing
        (Said(1, 1, 9000, 9000), False),  # the answer may be on its way
    ],
)  # fmt: skip
def test_a_peer_is_dead_that_answers_neither_data_nor_keep_alives(said: Said, found: bool) -> None:
    assert dead(said) == found


@pytest.mark.slow
def test_a_peer_that_takes_nothing_in_for_a_while_keeps_its_connection(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """Its process stands still, as one does that has too much to do."""
    here, there = pair
    here.setblocking(False)
    until, sent = monotonic() + 3.5, 0
    while monotonic() < until:
        if select.select([], [here], [], 0.1)[1]:
            sent += here.send(bytes(1 << 20))
        assert not dead(here)
    here.shutdown(socket.SHUT_WR)
    received = 0
    while data := there.recv(1 << 20):
        received += len(data)
    assert received == sent > 0
