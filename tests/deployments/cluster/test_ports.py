from __future__ import annotations

import os
import socket
import time

import pytest

from deployments.cluster import ports, run_folder, state_file
from deployments.settings import GatewaySettings, Settings, load_tenants


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "path_of", lambda port: tmp_path / f"run-{port}")


def gateway(**changes) -> GatewaySettings:
    names = ("port", "metrics_port", "haproxy_stats_port", "haproxy_metrics_port")
    return GatewaySettings(**{name: ports.any_free() for name in names} | changes)


def test_free_ports_have_nothing_said_of_them(tmp_path):
    assert ports.free_or_say(gateway(), tmp_path) == []


def test_a_foreign_listener_is_named_with_the_setting_it_blocks(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        (sentence,) = ports.free_or_say(gateway(haproxy_metrics_port=taken), tmp_path)
    assert f"port {taken} (gateway.haproxy_metrics_port) is taken by" in sentence
    assert f"pid {os.getpid()}" in sentence


@pytest.mark.parametrize("host", ["999.1.1.1", "192.0.2.1", "x" * 300])
def test_a_host_that_is_not_here_is_said_before_anything_starts(tmp_path, host):
    (sentence,) = ports.free_or_say(gateway(host=host), tmp_path)
    assert f"gateway.host {host} is no address" in sentence


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_host_that_is_here_is_fine(tmp_path, host):
    assert ports.free_or_say(gateway(host=host), tmp_path) == []


def test_the_proxy_needs_no_port_of_haproxy(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        settings = gateway(ingress="proxy", haproxy_stats_port=taken)
        assert ports.free_or_say(settings, tmp_path) == []


def state(port: int, mark: state_file.ProcessMark) -> state_file.ServerState:
    return state_file.ServerState(port, mark, "", "", "settings.yaml", time.time())


def test_a_server_of_ours_on_the_port_is_said_so(tmp_path):
    settings = gateway()
    state_file.write(state(settings.port, state_file.ProcessMark.of(os.getpid())), tmp_path)
    (sentence,) = ports.free_or_say(settings, tmp_path)
    assert f"port {settings.port} is served by Headrace already" in sentence


def test_the_state_of_a_dead_server_is_no_hindrance(tmp_path):
    settings = gateway()
    state_file.write(state(settings.port, state_file.ProcessMark(os.getpid(), 1.0)), tmp_path)
    assert ports.free_or_say(settings, tmp_path) == []


def test_tenants_are_written_whole_and_for_their_owner_alone(tmp_path):
    settings = Settings.model_validate(
        {
            "models": {"m": {"runtime": "synthetic"}},
            "tenants": {"acme": {"weight": 3, "rate": {"tokens_per_s": 9}}},
            "controllers": {"frozen": True},
        }
    )
    path = tmp_path / "tenants.yaml"
    ports.write_tenants(settings, path)
    written = load_tenants(path)
    assert (written.tenants, written.controllers) == (settings.tenants, settings.controllers)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
