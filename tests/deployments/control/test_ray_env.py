from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from deployments.control import ray_env
from deployments.control.ingress.haproxy_options import HAProxyOptions
from deployments.control.ray_env import EnvLayer, config_env, local_environment
from deployments.settings.gateway import GatewaySettings
from deployments.settings.model_fields import MAX_TIMEOUT_MS, SloSettings
from deployments.tools import operator

PROGRAM = Path("/opt/headrace-haproxy")
HAPROXY = GatewaySettings(ingress="haproxy")


def env(gateway: GatewaySettings) -> dict[str, str]:
    return {each.name: each.value for each in ray_env.variables(gateway, PROGRAM)}


def test_without_haproxy_serves_own_direct_ingress_stays_off(tmp_path):
    found = local_environment(GatewaySettings(ingress="direct"), tmp_path)
    assert found["RAY_SERVE_ENABLE_HA_PROXY"] == found["RAY_SERVE_ENABLE_DIRECT_INGRESS"] == "0"
    assert not [name for name in found if "HEADRACE_HAPROXY" in name or "BINARY_PATH" in name]


def test_haproxys_files_and_ports_are_those_of_the_settings(tmp_path):
    gateway = GatewaySettings(ingress="haproxy", haproxy_stats_port=1234, drain_s=5)
    found = local_environment(gateway, tmp_path)
    assert found["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"] == f"{tmp_path}/haproxy.cfg"
    assert found["RAY_SERVE_HAPROXY_STATS_PORT"] == "1234"


def test_haproxy_knows_the_port_of_grpc_before_there_is_a_gateway():
    found = env(GatewaySettings(grpc={"port": 8011, "idle_s": 1.5, "tls": False}))
    options = HAProxyOptions.of(found)
    assert (options.grpc_port, options.grpc_idle_s, options.grpc_tls) == (8011, 2, False)
    options = HAProxyOptions.of(env(HAPROXY))
    assert (options.grpc_port, options.grpc_idle_s, options.grpc_tls) == (0, 3600, True)
    static = ray_env.restart_env(GatewaySettings(grpc={"idle_s": 9}))
    assert static == ray_env.restart_env(GatewaySettings(grpc={}))
    for change in ({"port": 9}, {"tls": False}):
        assert static != ray_env.restart_env(GatewaySettings(grpc=change))


def test_a_reloaded_haproxy_may_serve_the_longest_stream_that_settings_allow(tmp_path):
    longest_ms = MAX_TIMEOUT_MS
    SloSettings(timeout_ms=longest_ms, max_timeout_ms=longest_ms)
    with pytest.raises(ValidationError):
        SloSettings(timeout_ms=longest_ms + 1)
    found = local_environment(GatewaySettings(ingress="haproxy", drain_s=5), tmp_path)
    assert int(found["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) > longest_ms / 1000
    assert int(found["RAY_SERVE_PORT_QUARANTINE_S"]) == 690


def test_a_gateways_port_is_not_used_again_before_its_drain_is_over(tmp_path):
    found = local_environment(GatewaySettings(ingress="haproxy", drain_s=1000), tmp_path)
    assert int(found["RAY_SERVE_PORT_QUARANTINE_S"]) == 1090


@pytest.mark.parametrize("ingress", ["haproxy", "direct"])
def test_telemetry_is_off(ingress):
    found = env(GatewaySettings(ingress=ingress))
    assert found["RAY_USAGE_STATS_ENABLED"] == "0"
    assert found["OPENVINO_TELEMETRY_OPT_OUT"] == "1"


@pytest.mark.parametrize("ingress", ["haproxy", "direct"])
def test_gateways_and_replicas_run_at_ordinary_priority(ingress):
    assert env(GatewaySettings(ingress=ingress))["RAY_worker_niceness"] == "0"


def test_the_image_says_nothing_of_the_settings():
    other = GatewaySettings(ingress="haproxy", host="10.0.0.7", haproxy_threads=3, drain_s=9)
    baked = [
        [each for each in ray_env.variables(gateway, PROGRAM) if each.layer is EnvLayer.IMAGE]
        for gateway in (HAPROXY, other)
    ]
    assert baked[0] == baked[1] != []


def test_a_serve_config_can_set_what_the_settings_say_and_nothing_of_a_node():
    in_config = config_env(HAPROXY)
    assert in_config["HEADRACE_HAPROXY_HOST"] == "127.0.0.1"
    assert in_config["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    of_ray_start = set(env(HAPROXY)) - set(in_config)
    assert of_ray_start == {
        "RAY_SERVE_HAPROXY_BINARY_PATH",
        "RAY_worker_niceness",
        "RAY_USAGE_STATS_ENABLED",
    }


def test_the_wrapper_reads_what_the_settings_tell_it():
    gateway = GatewaySettings.model_validate(
        {
            "ingress": "haproxy",
            "host": "10.0.0.7",
            "haproxy_admin_host": "10.0.0.8",
            "limits": {
                "headers_timeout_s": 6.5,
                "body_timeout_s": 7.5,
                "max_body_bytes": 2048,
                "max_requests": 50,
                "connections_per_source": 9,
            },
            "trusted_proxies": ["10.0.0.0/8", "fd00::/8"],
        }
    )
    told = HAProxyOptions.of(env(gateway))
    assert (told.host, told.admin_host) == ("10.0.0.7", "10.0.0.8")
    assert (told.headers_s, told.body_s, told.max_body_bytes) == (7, 8, 2048)
    assert (told.max_requests, told.source_connections) == (50, 9)
    assert told.trusted_proxies == ("10.0.0.0/8", "fd00::/8")


def test_a_wrapper_without_options_does_as_the_settings_do_by_default():
    found = HAProxyOptions.of(env(HAPROXY))
    assert found == HAProxyOptions(host="127.0.0.1", threads=1)


def test_an_operators_key_does_not_reach_replicas(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "ray.serve", raising=False)
    found = {operator.KEY: "hr_secret", "PATH": "/bin"}
    ray_env.apply_environment(GatewaySettings(ingress="direct"), tmp_path, {"A": "1"}, found)
    assert operator.KEY not in found
    assert (found["PATH"], found["A"]) == ("/bin", "1")
