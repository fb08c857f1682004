"""What Ray and Serve read at import, for both ingresses."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from deployments import ray_env
from deployments.settings import GatewaySettings

FOLDER = Path("/tmp/hr")


def gateway(**fields: Any) -> GatewaySettings:
    return GatewaySettings.model_validate(fields)


@pytest.mark.parametrize(
    ("ingress", "platform", "resolved"),
    [
        ("auto", "linux", "haproxy"),
        ("auto", "darwin", "proxy"),
        ("auto", "win32", "proxy"),
        ("proxy", "linux", "proxy"),
        ("haproxy", "darwin", "haproxy"),
    ],
)
def test_auto_is_haproxy_on_linux_alone(ingress: str, platform: str, resolved: str) -> None:
    assert ray_env.resolved_ingress(ingress, platform) == resolved


def test_haproxy_gets_its_ports_and_files_from_the_settings() -> None:
    settings = gateway(
        ingress="haproxy", haproxy_stats_port=18404, haproxy_metrics_port=19101, haproxy_threads=3
    )
    env = ray_env.serve_environment(settings, FOLDER)
    assert env["RAY_SERVE_ENABLE_HA_PROXY"] == env["RAY_SERVE_ENABLE_DIRECT_INGRESS"] == "1"
    assert env["RAY_SERVE_HAPROXY_STATS_PORT"] == "18404"
    assert env["RAY_SERVE_HAPROXY_METRICS_PORT"] == "19101"
    assert env["RAY_SERVE_HAPROXY_NBTHREAD"] == "3"
    files = [v for k, v in env.items() if k.endswith(("_FILE_LOC", "_PATH", "_STATE_FILE"))]
    assert [f for f in files if f.startswith("/")] == [f for f in files if f.startswith("/tmp/hr/")]


def test_the_plain_proxy_says_that_direct_ingress_is_off() -> None:
    env = ray_env.serve_environment(gateway(ingress="proxy"), FOLDER)
    assert env["RAY_SERVE_ENABLE_HA_PROXY"] == env["RAY_SERVE_ENABLE_DIRECT_INGRESS"] == "0"
    assert not [name for name in env if "HAPROXY_" in name and name.endswith("_PORT")]


@pytest.mark.parametrize("ingress", ["haproxy", "proxy"])
def test_nothing_is_reported_to_anybody(ingress: str) -> None:
    env = ray_env.serve_environment(gateway(ingress=ingress), FOLDER)
    assert (env["RAY_USAGE_STATS_ENABLED"], env["OPENVINO_TELEMETRY_OPT_OUT"]) == ("0", "1")
    assert all(isinstance(value, str) for value in env.values())


@pytest.mark.parametrize(
    ("files", "connections"),
    [
        (resource.RLIM_INFINITY, 65_536),
        (1_048_576, 65_536),
        (164_040, 65_536),
        (164_037, 65_534),
        (4096, 1558),
        (450, 100),
        (0, 100),
    ],
)
def test_haproxy_takes_no_more_connections_than_files_allow(
    monkeypatch: pytest.MonkeyPatch, files: int, connections: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (files, files))
    assert ray_env.haproxy_maxconn() == connections


def test_the_environment_is_set_once_and_with_a_token_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "ray.serve", raising=False)
    first: dict[str, str] = {}
    second: dict[str, str] = {}
    for environ in (first, second):
        ray_env.apply_environment(gateway(), FOLDER, {"OWN": "1"}, environ)
    assert first["RAY_AUTH_MODE"] == "token"
    assert first["OWN"] == "1"
    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]
    monkeypatch.setenv("RAY_AUTH_TOKEN", "abc")
    assert ray_env.auth_headers() == {"Authorization": "Bearer abc"}


def test_too_late_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.serve", sys)
    environ: dict[str, str] = {}
    with pytest.raises(RuntimeError, match="before"):
        ray_env.apply_environment(gateway(), FOLDER, {}, environ)
    assert environ == {}
