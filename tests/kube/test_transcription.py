"""The chart's templates against `headrace build`, over settings drawn at random: zeros, falses,
empty sections and bounds among them, which templates are prone to take for nothing said."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.kube.chart import objects, serve_config_of
from tests.kube.test_value_sets import built, same

CHANCES = 60
_GATEWAY: dict[str, list[Any]] = {
    "replicas": [1, 2, 7],
    "replicas_per_node": [1, 3],
    "port": [80, 8000],
    "ingress": ["auto", "haproxy"],
    "host": ["0.0.0.0", "10.1.2.3", "::"],
    "metrics_port": [9400, 12000],
    "haproxy_admin_host": ["0.0.0.0"],
    "haproxy_threads": [1, 4],
    "drain_s": [0, 0.5, 30, 90.75],
    "keep_alive_s": [0.1, 90, 3600],
    "replay": [True, False],
    "priorities": [["only"], ["first", "second"]],
    "auth": ["required"],
    "grpc": [{}, {"port": 90, "idle_s": 1.5, "max_message_bytes": 1024}, {"tls": False}],
    "limits": [
        {},
        {"max_requests": 1},
        {"body_timeout_s": 0.001, "max_held_bytes": 1024},
        {"headers_timeout_s": 2.5, "connections_per_source": 9, "max_body_bytes": 1024},
    ],
    "metrics_host": ["10.1.2.3"],
    "allowed_hosts": [[], ["*.example.org"]],
    "trusted_proxies": [[], ["10.0.0.0/8", "fd00::/8"]],
    "log": [{}, {"level": "error"}, {"format": "text"}],
    "channel": [{}, {"first_port": 20000, "last_port": 20000}],
    "tracing": [{}, {"sample_ratio": 0}, {"sample_ratio": 0.0000001}],
}
_REPLICAS: dict[str, list[Any]] = {
    "slots": [1, 2, 5],
    "num_cpus": [0, 0.5, 2],
    "memory_mib": [1, 2048],
    "resources": [{}, {"licence": 0.5}],
    "labels": [{}, {"zone": "!b"}],
    "threads": [0, 3],
    "surge_percent": [0, 50],
    "hang_limit_s": [0.5, 30],
    "start_timeout_s": [60],
    "priority": [0, 4],
    "cost_per_hour": [0, 1.25],
    "spare": [0, 2],
}
_NUMBER: list[dict[str, Any]] = [
    {}, {"count": 3}, {"min": 0}, {"max": 5}, {"min": 0, "max": 2}, {"min": 3},
    {"min": 2, "max": 2},
]  # fmt: skip
_MODEL: dict[str, list[Any]] = {
    "slo": [{}, {"latency_ms": 5, "late": "refuse"}, {"timeout_ms": 1000}],
    "hedge": [{}, {"mode": "off"}, {"mode": False}],
    "lengths": [{}, {"max": 1_048_576, "buckets": [16, 1_048_576]}],
    "batch": [{}, {"max_size": 1}],
    "coalesce": [True, False],
    "scaling": [{}, {"policy": "cost-first"}, {"mode": False}, {"knee": 1, "idle_s": 60}],
    "options": [{}, {"base_ms": 0}, {"base_ms": 2, "per_token_us": 0.00000025}],
}
_TENANT: dict[str, list[Any]] = {
    "weight": [0.01, 3],
    "record": [False],
    "models": [["a"], []],
}
_CAPACITY: list[dict[str, Any]] = [
    {},
    {"budget": {"gpus": 0}},
    {"pool": {}},
    {"pool": {"min": 0, "num_cpus": 0, "models": ["a"]}},
    {"pool": {"min": 3, "max": 3, "models": "all", "memory_mib": 1, "after_ms": 0.5}},
    {"pool": {"models": [], "resources": {"licence": 0.5}}},
]  # fmt: skip


@pytest.mark.parametrize("seed", range(CHANCES))
def test_settings_mean_the_same_applications_either_way(seed: int, tmp_path: Path) -> None:
    values = _drawn(random.Random(seed))
    assert same(serve_config_of(objects(values))) == same(built(values, tmp_path))


_VLLM = {"runtime": "vllm", "task": "generate", "source": "/models/llm"}
_SHARES = {"options": {"kv_cache_gib": 1, "gpu_memory_utilization": 0.2}}
_SMALL = {"runtime": "synthetic", "task": "generate"}
_PLENTY = {"memory_mib": 8192}


@pytest.mark.parametrize(
    ("pool", "models"),
    [
        (_PLENTY, {"g": {"runtime": "synthetic", "task": "generate"}, "v": _VLLM}),
        (
            _PLENTY,
            {"g": {"runtime": "synthetic", "task": "generate", "slo": {"timeout_ms": 900000}}},
        ),
        ({**_PLENTY, "models": ["a"]}, {"g": {"runtime": "synthetic", "task": "generate"}}),
        ({**_PLENTY, "num_gpus": 1, "asleep_mib": 512}, {"v": _VLLM | _SHARES, "w": _VLLM}),
        ({**_PLENTY, "num_gpus": 1}, {"v": _VLLM | _SHARES | {"slo": {"max_timeout_ms": 900000}}}),
    ],
)
def test_a_pool_of_models_that_generate_is_the_same_either_way(
    pool: dict[str, Any], models: dict[str, Any], tmp_path: Path
) -> None:
    group = {"name": "cpu", "cpu": 8, "memory": "8Gi", "gpus": 4}
    values = {
        "models": {"a": {"runtime": "synthetic"}, **models},
        "scaling": {"pool": pool},
        "gateways": {"cpu": 8},
        "workerGroups": [group],
        "drainSeconds": 86400,
    }
    assert same(serve_config_of(objects(values))) == same(built(values, tmp_path))


def _drawn(rng: random.Random) -> dict[str, Any]:
    gateway = _some(rng, _GATEWAY)
    models = {name: _model(rng) for name in "abc"[: rng.randint(1, 3)]}
    if gateway.get("replay") is False:
        models["a"]["retry"] = False
        models["a"].pop("hedge", None)
    return {
        "models": models,
        "gateway": gateway,
        "tenants": {"acme": _some(rng, _TENANT)},
        "controllers": rng.choice([{}, {"frozen": True}, {"frozen": False}]),
        "scaling": rng.choice(_CAPACITY),
        "gateways": {"cpu": 8},
        "workerGroups": [{"name": "cpu", "cpu": 8, "memory": "8Gi", "resources": {"licence": 1}}],
        "drainSeconds": 86400,
    }


def _model(rng: random.Random) -> dict[str, Any]:
    model = {"runtime": "synthetic", **_some(rng, _MODEL)}
    replicas = _some(rng, _REPLICAS) | rng.choice(_NUMBER)
    if rng.random() < 0.4:
        replicas["groups"] = [{"name": "one"} | _group(rng), _group(rng) | {"name": "two"}]
        replicas["groups"][1]["overflow"] = {"after_ms": rng.choice([0.5, 50])}
    return _woken(model | rng.choice([{}, {"replicas": replicas}]))


def _woken(model: dict[str, Any]) -> dict[str, Any]:
    """Only an autoscaler that decides starts a first replica."""
    return {n: v for n, v in model.items() if n != "scaling"} if _may_sleep(model) else model


def _may_sleep(model: dict[str, Any]) -> bool:
    replicas = model.get("replicas", {})
    return any(each.get("min") == 0 for each in [replicas, *replicas.get("groups", ())])


def _group(rng: random.Random) -> dict[str, Any]:
    own = _some(rng, {name: _REPLICAS[name] for name in ("slots", "num_cpus", "labels", "threads")})
    return own | rng.choice(_NUMBER) | rng.choice([{}, {"options": {}}, {"precision": "fp32"}])


def _some(rng: random.Random, choices: dict[str, list[Any]]) -> dict[str, Any]:
    """Half of them, each with one of its values."""
    return {name: rng.choice(values) for name, values in choices.items() if rng.random() < 0.5}
