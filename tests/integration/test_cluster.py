"""What a node needs, what the preflight says of it, and who listens where."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from ray_cluster import HERE, THERE, Cluster, until
from served import HEADRACE, http, patient, synthetic

from deployments.gateway.http.strict_protocol import MAX_HEADERS

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(one_cluster: Cluster) -> Iterator[Cluster]:
    one_cluster.file = one_cluster.write(one_cluster.folder, {"device": synthetic()})
    yield one_cluster
    one_cluster.end()


def checked(cluster: Cluster) -> tuple[int, dict[str, Any]]:
    done = cluster.headrace("cluster", "check", str(cluster.file), "--json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_node_started_with_what_is_printed_can_serve(cluster):
    code, told = checked(cluster)
    assert code == 0, told["findings"]
    (node,) = told["nodes"]
    assert node["head"]
    assert node["clock_error_s"] < 1
    assert not [each for each in told["findings"] if each["topic"] in ("environment", "wrapper")]


def test_serve_runs_haproxy_where_the_settings_say(cluster):
    cluster.put_plain_app()
    gateway = cluster.gateway
    wanted = {
        gateway["port"]: gateway["host"],
        gateway["haproxy_stats_port"]: gateway["haproxy_admin_host"],
        gateway["haproxy_metrics_port"]: gateway["haproxy_admin_host"],
    }
    until(lambda: cluster.listening("haproxy") == wanted, 10)


def test_a_replicas_rank_on_its_node_is_known(cluster):
    ranks = http.get(f"http://{cluster.gateway['host']}:{cluster.gateway['port']}/").json()
    assert ranks == {"rank": 0, "local_rank": 0}


def test_a_cluster_that_serves_already_is_still_right(cluster):
    code, told = checked(cluster)
    assert code == 0, told["findings"]
    assert {each["what"] for each in told["nodes"][0]["busy"] if each["serves"]} == {
        "http", "haproxy_stats", "haproxy_metrics",
    }  # fmt: skip


def said(address: tuple[str, int], request: bytes) -> bytes:
    with socket.create_connection(address, patient(10)) as caller:
        caller.sendall(request)
        return caller.recv(4096)


def own_port(cluster: Cluster) -> int:
    """Of the replica's own server, which callers are not meant to find."""
    (port,) = {port for port in cluster.listening() if 30_000 <= port <= 31_000}
    return port


def test_a_gateways_own_port_is_as_strict_as_haproxy(cluster):
    many = b"".join(b"x-%d: 1\r\n" % n for n in range(2 * MAX_HEADERS))
    request = b"GET / HTTP/1.1\r\nhost: x\r\n"
    haproxy = (cluster.gateway["host"], cluster.gateway["port"])
    own = (HERE, own_port(cluster))
    assert said(own, request + b"\r\n").startswith(b"HTTP/1.1 200 ")
    assert said(haproxy, request + many + b"\r\n").startswith(b"HTTP/1.1 431 ")
    assert said(own, request + many + b"\r\n").startswith(b"HTTP/1.1 431 ")
    large = b"x-large: " + b"a" * 20_000 + b"\r\n\r\n"
    assert said(haproxy, request + large).startswith(b"HTTP/1.1 431 ")
    assert said(own, request + large).startswith(b"HTTP/1.1 431 ")


def test_a_node_that_lacks_what_ray_start_wants_is_named(cluster):
    gcs = cluster.ports["gcs"]
    cluster.start(f"--address={HERE}:{gcs}", f"--node-ip-address={THERE}",
                  RAY_SERVE_HAPROXY_BINARY_PATH="/bin/true")  # fmt: skip
    cluster.until_nodes(2)
    code, told = checked(cluster)
    assert code == 1
    found = told["findings"]
    errors = {
        (each["topic"], each["node"]) for each in told["findings"] if each["level"] == "error"
    }
    assert errors == {("wrapper", THERE)}
    (wrapper,) = [each for each in found if each["topic"] == "wrapper"]
    assert "must be headrace-haproxy" in wrapper["message"]
    warned = [each for each in found if each["topic"] == "environment"]
    assert {each["node"] for each in warned} == {THERE}
    assert any("RAY_worker_niceness is not set" in each["message"] for each in warned)


def test_a_caller_without_the_token_is_told_where_it_is_looked_for(cluster):
    done = subprocess.run(
        [*HEADRACE, "cluster", "check"],
        env=cluster.environ | {"RAY_AUTH_TOKEN": "wrong"}, capture_output=True, text=True,
        timeout=patient(60),
    )  # fmt: skip
    assert done.returncode == 1
    assert "RAY_AUTH_TOKEN_PATH" in done.stderr
