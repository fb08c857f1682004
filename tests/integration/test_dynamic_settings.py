"""Settings that running processes of a cluster take up: HAProxy's bounds, and how all log. Callers
notice nothing, and no replica of a model restarts, whatever the nodes' environment says."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray_cluster import Cluster, get, until
from served import Load, free_port, http, infer_body, synthetic

from deployments.control.ingress.haproxy_options import HAProxyOptions

pytestmark = pytest.mark.integration
MODELS = {"a": synthetic(options={"base_ms": 2})}
GATEWAYS = 2
METRICS_PORTS = free_port(GATEWAYS)


@pytest.fixture(scope="module")
def cluster(one_cluster: Cluster) -> Iterator[Cluster]:
    apply(one_cluster, level="error", limits={"max_requests": 8, "max_body_bytes": 4096})
    until(lambda: get(f"{one_cluster.url}/readyz") == 200, 60)
    until_bound(one_cluster, 8)
    yield one_cluster
    one_cluster.clear()


def apply(cluster: Cluster, *, level: str, limits: dict[str, int], **more: Any) -> str:
    """What it printed."""
    own = {
        "replicas": GATEWAYS, "replicas_per_node": GATEWAYS, "metrics_port": METRICS_PORTS,
        "log": {"level": level}, "limits": limits, **more,
    }  # fmt: skip
    file = cluster.folder / "dynamic.yaml"
    file.write_text(yaml.safe_dump({"models": MODELS, "gateway": cluster.gateway | own}))
    applied = cluster.apply(file)
    assert applied.returncode == 0, applied.stderr
    return applied.stdout + applied.stderr


def until_bound(cluster: Cluster, max_requests: int) -> str:
    """HAProxy's configuration, once it knows all gateways and has this bound for each."""
    places, found = HAProxyOptions(max_requests=max_requests).places, [""]

    def has_it() -> bool:
        with contextlib.suppress(ValueError, FileNotFoundError):  # while it is replaced
            (file,) = Path(cluster.haproxy).glob("*/haproxy.cfg")  # one node's
            found[0] = file.read_text()
        servers = [line for line in found[0].splitlines() if "server SERVE_REPLICA" in line]
        right = [line for line in servers if f" maxconn {places} " in line]
        return len(right) == len(servers) == GATEWAYS

    until(has_it, 90)
    return found[0]


def until_replaced(cluster: Cluster, gateways: set[int]) -> None:
    until(lambda: not cluster.replicas("gateway") & gateways, 60)


def departures(cluster: Cluster) -> int:
    """Lines of level info that the model's replicas wrote of gateways that left them."""
    shown = cluster.headrace("logs", "a", "--address", cluster.address)
    return shown.stdout.count(" left: ")


def infer(cluster: Cluster, size: int) -> int:
    """The status of a right request of so many bytes."""
    body = json.dumps(infer_body([1, 2])).ljust(size).encode()
    assert len(body) == size
    headers = {"content-type": "application/json"}
    url = f"{cluster.url}/v2/models/a/infer"
    return http.post(url, content=body, headers=headers).status_code


def test_callers_and_replicas_go_on_while_bounds_and_the_log_level_change(
    cluster: Cluster,
) -> None:
    pids, first = cluster.replicas("model-a"), cluster.replicas("gateway")
    assert (len(pids), len(first)) == (2, GATEWAYS)  # the replica and its anchor
    assert (infer(cluster, 4096), infer(cluster, 10_000)) == (200, 413)
    load = Load(f"{cluster.url}/v2/models/a/infer", 2, {})
    try:
        changed = {"max_requests": 9, "max_body_bytes": 16_384, "body_timeout_s": 7}
        said = apply(
            cluster, level="error", limits=changed, trusted_proxies=["10.0.0.0/8"],
            haproxy_threads=2,
        )  # fmt: skip
        assert "HEADRACE" not in said, "nothing waits for a restart"
        config = until_bound(cluster, 9)
        until_replaced(cluster, first)
        assert "wait-for-body time 7s if { req.body_size 1:16384 }" in config
        assert "acl trusted_proxy src 10.0.0.0/8" in config
        assert "nbthread 2\n" in config
        assert (infer(cluster, 10_000), infer(cluster, 20_000)) == (200, 413)
        assert departures(cluster) == 0  # they log errors only

        for bound in (10, 11):  # of the second change, replicas hear for certain
            before = cluster.replicas("gateway")
            apply(cluster, level="info", limits=changed | {"max_requests": bound})
            until_bound(cluster, bound)
            until_replaced(cluster, before)
        until(lambda: departures(cluster) > 0, 60)
    finally:
        load.stop()
    assert load.answered > 100
    assert load.failures == []
    assert cluster.replicas("model-a") == pids
