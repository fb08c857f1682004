"""A start is refused in words where it could not listen; whoever listens on a port is found and
named, also where the system does not say who it is."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from deployments.control.supervisor import ports
from deployments.control.supervisor.ports import listener
from deployments.settings.gateway import GatewaySettings

Listen = Callable[[str], int]


def gateway(**changes) -> GatewaySettings:
    names = ("port", "metrics_port", "haproxy_stats_port", "haproxy_metrics_port")
    return GatewaySettings(**dict(zip(names, ports.several_free(4), strict=True)) | changes)


def test_free_ports_have_nothing_said_of_them():
    assert ports.refusal(gateway()) is None


def test_a_foreign_listener_is_named_with_the_setting_it_blocks():
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        sentence = ports.refusal(gateway(haproxy_metrics_port=taken))
    assert f"port {taken} (gateway.haproxy_metrics_port) is taken by" in sentence
    assert f"pid {os.getpid()}" in sentence


def test_all_clashes_are_in_one_message():
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        taken = {"port": one.getsockname()[1], "haproxy_stats_port": other.getsockname()[1]}
        lines = ports.refusal(gateway(**taken)).splitlines()
    assert [line.split(" is taken")[0] for line in lines] == [
        f"port {taken['port']} (gateway.port)",
        f"port {taken['haproxy_stats_port']} (gateway.haproxy_stats_port)",
    ]
    assert lines[-1].endswith("; end them or choose others")


def test_the_port_of_grpc_is_looked_at_where_callers_reach_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        settings = gateway(grpc={"port": taken}, haproxy_admin_host="127.0.0.2")
        assert f"port {taken} (gateway.grpc.port) is taken by" in ports.refusal(settings)
    assert ports.refusal(settings) is None
    assert "grpc" not in ports.of(gateway())


def test_defaults_that_callers_do_not_know_give_way_to_free_ports(monkeypatch):
    busy = {8404, 9401}
    free = {20_000, 20_001, 20_004, 20_005}
    monkeypatch.setattr(ports, "listener", lambda host, port: port in busy)
    monkeypatch.setattr(ports, "_bind_refused", lambda host, port: port not in free)
    chosen = ports.free_instead(GatewaySettings(replicas=2))
    assert chosen.keys() == {"haproxy_stats_port", "metrics_port"}  # 9401 is the second gateway's
    first = chosen["metrics_port"]
    assert {chosen["haproxy_stats_port"], first, first + 1} < free
    assert chosen["haproxy_stats_port"] not in {first, first + 1}
    assert ports.free_instead(GatewaySettings(replicas=1)).keys() == {"haproxy_stats_port"}
    assert ports.free_instead(GatewaySettings(ingress="direct", metrics_port=9401)) == {}
    named = GatewaySettings(haproxy_stats_port=8404, metrics_port=9401)
    assert ports.free_instead(named) == {}  # the user's own choice: refused, not replaced


def test_no_two_settings_are_given_one_free_port(monkeypatch):
    free = {20_000, 20_001, 20_002}
    monkeypatch.setattr(ports, "listener", lambda host, port: True)
    monkeypatch.setattr(ports, "_bind_refused", lambda host, port: port not in free)
    chosen = ports.free_instead(GatewaySettings(replicas=1))
    assert set(chosen.values()) == free


@pytest.mark.parametrize("host", ["999.1.1.1", "192.0.2.1", "x" * 300])
def test_a_host_that_is_not_here_is_said_before_anything_starts(host):
    sentence = ports.refusal(gateway(host=host))
    assert f"gateway.host {host} is not an address" in sentence


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_host_that_is_here_is_fine(host):
    assert ports.refusal(gateway(host=host)) is None


def test_haproxys_own_pages_need_an_address_that_is_here_where_haproxy_runs():
    sentence = ports.refusal(gateway(haproxy_admin_host="192.0.2.1"))
    assert "gateway.haproxy_admin_host 192.0.2.1 is not an address" in sentence
    assert ports.refusal(gateway(ingress="direct", haproxy_admin_host="192.0.2.1")) is None


def test_haproxys_own_pages_meet_only_who_listens_at_their_address():
    with socket.create_server(("127.0.0.2", 0)) as server:
        taken = server.getsockname()[1]
        assert ports.refusal(gateway(haproxy_stats_port=taken)) is None
        elsewhere = gateway(haproxy_stats_port=taken, haproxy_admin_host="127.0.0.2")
        assert "gateway.haproxy_stats_port" in ports.refusal(elsewhere)


def test_the_gateway_itself_needs_no_port_of_haproxy():
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        settings = gateway(ingress="direct", haproxy_stats_port=taken)
        assert ports.refusal(settings) is None


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Listens on an address and gives the port."""
    opened: list[socket.socket] = []

    def start(address: str) -> int:
        made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        opened.append(made)
        made.bind((address, 0))
        made.listen()
        port: int = made.getsockname()[1]
        return port

    yield start
    for each in opened:
        each.close()


@pytest.fixture
def free_port() -> int:
    """Below those from which the system gives a port to each connection of any process."""
    for port in range(10_000 + os.getpid() % 5_000, 20_000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise RuntimeError("no port is free")


@pytest.mark.parametrize(
    ("bound", "asked"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "localhost"),
        ("127.0.0.1", "0.0.0.0"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("::", "::1"),
    ],
)
def test_listener_is_named_with_its_process(listen: Listen, bound: str, asked: str) -> None:
    if ":" in bound and not socket.has_ipv6:
        pytest.skip("no IPv6 on this machine")
    port = listen(bound)
    found = listener(asked, port)
    assert found is not None
    assert (found.pid, found.port) == (os.getpid(), port)
    assert found.name == psutil.Process().name()
    assert str(os.getpid()) in str(found)


def test_free_port_has_no_listener(free_port: int) -> None:
    assert listener("127.0.0.1", free_port) is None
    assert listener("0.0.0.0", free_port) is None


def test_other_address_of_the_same_port_does_not_meet(listen: Listen) -> None:
    port = listen("127.0.0.1")
    assert listener("127.0.0.2", port) is None


def test_bound_socket_that_does_not_listen_is_not_free(free_port: int) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", free_port))
        found = listener("127.0.0.1", free_port)
    assert found is not None
    assert found.pid is None


def test_connection_that_has_ended_is_no_listener() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        server.accept()[0].close()  # closes first: its end stays in TIME_WAIT
        client.close()
    assert listener("127.0.0.1", port) is None


def test_listener_is_found_where_the_table_is_closed_to_us(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(kind: str) -> list[object]:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", closed)
    found = listener("127.0.0.1", listen("127.0.0.1"))
    assert found is not None
    assert found.pid == os.getpid()


def test_listener_of_another_user_is_found_without_a_name(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "net_connections", lambda kind: [])
    found = listener("127.0.0.1", listen("127.0.0.1"))
    assert found is not None
    assert found.pid is None
    assert "another user's process" in str(found)
