"""A Ray that somebody else started, with the environment that `headrace cluster env` prints."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from served import CHECKOUT, HEADRACE, environment, free_port, patient

from deployments.cluster.addresses import serve_host
from deployments.gateway.http.strict_protocol import MOST_HEADERS
from deployments.settings.gateway import GatewaySettings

pytestmark = pytest.mark.integration

HERE = "127.0.0.1"
THERE = "127.0.0.2"  # a second node on this machine, as Ray sees it
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
TOKEN = "0123456789abcdef" * 4


class Cluster:
    """Nodes of one Ray on this machine. `gateway`: as in the settings file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {name: free_port() for name in ("gcs", "dashboard", "fallback", "fallback_g")}
        self.gateway: dict[str, Any] = {
            "ingress": "haproxy", "port": free_port(), "metrics_port": free_port(),
            "haproxy_stats_port": free_port(), "haproxy_metrics_port": free_port(),
            "haproxy_admin_host": "127.0.0.3", "host": "127.0.0.4",
            "limits": {"body_timeout_s": 2},
        }  # fmt: skip
        self.file = folder / "settings.yaml"
        settings = {"models": {"device": {"runtime": "synthetic"}}, "gateway": self.gateway}
        self.file.write_text(yaml.safe_dump(settings))
        self.environ = environment(
            XDG_STATE_HOME=str(folder / "state"), XDG_CACHE_HOME=str(folder / "cache"),
            RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN, RAY_TMPDIR="/tmp",
            RAY_API_SERVER_ADDRESS=f"http://{HERE}:{self.ports['dashboard']}",
            RAY_SERVE_FALLBACK_PROXY_HTTP_PORT=str(self.ports["fallback"]),
            RAY_SERVE_FALLBACK_PROXY_GRPC_PORT=str(self.ports["fallback_g"]),
            PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        )  # fmt: skip
        tests = str(CHECKOUT / "tests" / "integration")
        self.environ["PYTHONPATH"] += os.pathsep + tests
        self.nodes: list[subprocess.Popen[bytes]] = []

    def headrace(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*HEADRACE, *arguments], env=self.environ, capture_output=True, text=True,
            timeout=patient(120),
        )  # fmt: skip

    def exported(self) -> dict[str, str]:
        """As the `eval` of a shell."""
        shown = self.headrace("cluster", "env", str(self.file), "--json")
        return {each["name"]: each["value"] for each in json.loads(shown.stdout)}

    def start(self, *arguments: str, **own: str) -> None:
        log = (self.folder / f"ray-{len(self.nodes)}.log").open("wb")
        self.nodes.append(
            subprocess.Popen(
                [*RAY, "start", "--block", "--num-cpus=2", "--object-store-memory=80000000",
                 "--min-worker-port=0", "--max-worker-port=0",
                 f"--dashboard-agent-listen-port={free_port()}", *arguments],
                env=self.environ | own, stdout=log, stderr=log, start_new_session=True,
            )
        )  # fmt: skip

    def rest(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return httpx.request(
            method, f"{self.environ['RAY_API_SERVER_ADDRESS']}{path}", json=body,
            headers={"Authorization": f"Bearer {TOKEN}"}, timeout=patient(30),
        )  # fmt: skip

    def until_nodes(self, count: int) -> None:
        def alive() -> bool:
            nodes = self.rest("GET", "/nodes?view=summary").json()["data"]["summary"]
            return sum(each["raylet"].get("state") == "ALIVE" for each in nodes) == count

        until(alive, 60)

    def put_plain_app(self) -> None:
        gateway = GatewaySettings.model_validate(self.gateway)
        answer = self.rest(
            "PUT",
            "/api/serve/applications/",
            {
                "http_options": {
                    "host": serve_host(gateway, one_machine=False),
                    "port": gateway.port,
                },
                "applications": [
                    {"name": "plain", "route_prefix": "/", "import_path": "plain_app:app"}
                ],
            },
        )
        assert answer.status_code == 200, answer.text
        until(lambda: get(f"http://{gateway.host}:{gateway.port}/") == 200, 60)

    def processes(self) -> list[psutil.Process]:
        """All that the nodes started, by what only they have in their environment."""
        mark = str(self.folder / "state")
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("XDG_STATE_HOME") == mark:
                    found.append(process)
        return found

    def end(self) -> None:
        for node in reversed(self.nodes):
            node.terminate()
            node.wait(patient(30))
        left = self.processes()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, patient(10))


def until(condition: Any, limit_s: float) -> None:
    end = time.monotonic() + patient(limit_s)
    while True:
        with contextlib.suppress(httpx.HTTPError, KeyError, ValueError):
            if condition():
                return
        assert time.monotonic() < end, f"not within {patient(limit_s):g} s"
        time.sleep(0.2)


def get(url: str) -> int:
    return httpx.get(url, timeout=5).status_code


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    gcs, dashboard = made.ports["gcs"], made.ports["dashboard"]
    try:
        made.start("--head", f"--port={gcs}", f"--dashboard-port={dashboard}",
                   f"--node-ip-address={HERE}", **made.exported())  # fmt: skip
        made.until_nodes(1)
        yield made
    finally:
        made.end()


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
    bound = {
        connection.laddr.port: connection.laddr.ip
        for process in cluster.processes()
        if process.name() == "haproxy"
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert bound == {
        gateway["port"]: gateway["host"],
        gateway["haproxy_stats_port"]: gateway["haproxy_admin_host"],
        gateway["haproxy_metrics_port"]: gateway["haproxy_admin_host"],
    }


def test_a_replicas_rank_on_its_node_is_known(cluster):
    ranks = httpx.get(f"http://{cluster.gateway['host']}:{cluster.gateway['port']}/").json()
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
    (port,) = {
        connection.laddr.port
        for process in cluster.processes()
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN and 30_000 <= connection.laddr.port <= 31_000
    }
    return port


def test_a_gateways_own_port_is_as_strict_as_haproxy(cluster):
    many = b"".join(b"x-%d: 1\r\n" % n for n in range(2 * MOST_HEADERS))
    request = b"GET / HTTP/1.1\r\nhost: x\r\n"
    haproxy = (cluster.gateway["host"], cluster.gateway["port"])
    own = (HERE, own_port(cluster))
    assert said(own, request + b"\r\n").startswith(b"HTTP/1.1 200 ")
    assert said(haproxy, request + many + b"\r\n").startswith(b"HTTP/1.1 400 ")
    assert said(own, request + many + b"\r\n").startswith(b"HTTP/1.1 400 ")
    large = b"x-large: " + b"a" * 20_000 + b"\r\n\r\n"
    assert said(haproxy, request + large).startswith(b"HTTP/1.1 400 ")
    assert said(own, request + large).startswith(b"HTTP/1.1 400 ")


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
