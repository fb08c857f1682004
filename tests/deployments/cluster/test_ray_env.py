from __future__ import annotations

from pathlib import Path

import pytest

from deployments.cluster.ray_env import haproxy_maxconn, resolved_ingress, serve_environment
from deployments.settings.gateway import GatewaySettings

FOLDER = Path("/tmp/headrace-1-8000")


@pytest.mark.parametrize(
    ("asked", "platform", "expected"),
    [
        ("auto", "linux", "haproxy"),
        ("auto", "darwin", "proxy"),
        ("proxy", "linux", "proxy"),
        ("haproxy", "darwin", "haproxy"),
    ],
)
def test_auto_is_haproxy_on_linux_alone(asked, platform, expected):
    assert resolved_ingress(asked, platform) == expected


def test_without_haproxy_direct_ingress_stays_off():
    env = serve_environment(GatewaySettings(ingress="proxy"), FOLDER)
    assert env["RAY_SERVE_ENABLE_HA_PROXY"] == env["RAY_SERVE_ENABLE_DIRECT_INGRESS"] == "0"
    assert not [name for name in env if name.startswith("RAY_SERVE_HAPROXY_CONFIG")]


def test_haproxys_files_and_ports_are_those_of_the_settings():
    gateway = GatewaySettings(ingress="haproxy", haproxy_stats_port=1234, drain_s=5)
    env = serve_environment(gateway, FOLDER)
    assert env["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"] == f"{FOLDER}/haproxy.cfg"
    assert env["RAY_SERVE_HAPROXY_STATS_PORT"] == "1234"
    assert env["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"] == "65"


@pytest.mark.parametrize("ingress", ["haproxy", "proxy"])
def test_telemetry_is_off(ingress):
    env = serve_environment(GatewaySettings(ingress=ingress), FOLDER)
    assert env["RAY_USAGE_STATS_ENABLED"] == "0"
    assert env["OPENVINO_TELEMETRY_OPT_OUT"] == "1"


@pytest.mark.parametrize(
    ("files", "connections"), [(1024, 329), (1_000_000, 65_536), (100, 100), (-1, 65_536)]
)
def test_connections_fit_the_files_that_may_be_open(monkeypatch, files, connections):
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, files))
    assert haproxy_maxconn() == connections


@pytest.mark.parametrize("ingress", ["haproxy", "proxy"])
def test_gateways_and_replicas_run_at_ordinary_priority(ingress):
    env = serve_environment(GatewaySettings(ingress=ingress), FOLDER)
    assert env["RAY_worker_niceness"] == "0"
