"""A server that listens on IPv6, by each kind of ingress: asked, metered and stopped there."""

from __future__ import annotations

import socket

import httpx
import pytest
from served import Server, patient, synthetic, total

pytestmark = pytest.mark.integration


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(("host", "ingress"), [("::1", "haproxy")])
def test_it_is_reached_where_it_says(serve, host: str, ingress: str) -> None:
    if not has_ipv6():
        pytest.skip("IPv6 IS NOT CHECKED: no ::1")
    gateway = {"host": host, "ingress": ingress, "metrics_host": host, "path_prefix": "/inference"}
    if ingress == "haproxy":
        gateway["haproxy_admin_host"] = "::1"
    server: Server = serve({"device": synthetic()}, gateway=gateway)
    server.start(ready=False)
    base = f"http://[::1]:{server.port}"
    server.until(lambda: f"ready: {base}" in server.output, 120)
    body = {"inputs": [{"name": "ids", "shape": [1, 2], "datatype": "INT64", "data": [20, 22]}]}
    with httpx.Client(base_url=base, timeout=patient(10)) as client:
        for prefix in ("", "/inference"):
            answer = client.post(f"{prefix}/v2/models/device/infer", json=body)
            assert (answer.status_code, total(answer)) == (200, 42)
            document = client.get(f"{prefix}/openapi.json").json()
            assert document["servers"] == [{"url": prefix or "/"}]
            assert client.get(f"{prefix}/docs").status_code == 200
        assert client.get("/readyz").status_code == 200
    metrics = f"http://[::1]:{server.gateway['metrics_port']}/metrics"
    assert "headrace_requests_total" in httpx.get(metrics).text
    if ingress == "haproxy":
        stats = f"http://[::1]:{server.gateway['haproxy_stats_port']}/stats"
        assert httpx.get(stats).status_code == 200
    if host == "::":
        assert httpx.get(f"http://127.0.0.1:{server.port}/readyz").status_code == 200
    stopped = server.headrace("stop", "--port", str(server.port))
    assert (stopped.returncode, server.wait()) == (0, 0)
