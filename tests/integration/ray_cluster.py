"""A Ray that somebody else started, with the environment that `headrace cluster env` prints."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml
from served import CHECKOUT, HEADRACE, environment, free_port, http, listens_on, name_of, patient

from deployments.control.serve_config import serve_host
from deployments.settings.gateway import GatewaySettings

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
        }  # fmt: skip
        self.file = self.write(folder, {"device": {"runtime": "synthetic"}})
        self.haproxy = tempfile.mkdtemp(prefix="hr-", dir="/tmp")
        self.environ = environment(
            XDG_STATE_HOME=str(folder / "state"), XDG_CACHE_HOME=str(folder / "cache"),
            RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN, RAY_TMPDIR="/tmp",
            RAY_API_SERVER_ADDRESS=f"http://{HERE}:{self.ports['dashboard']}",
            RAY_SERVE_FALLBACK_PROXY_HTTP_PORT=str(self.ports["fallback"]),
            RAY_SERVE_FALLBACK_PROXY_GRPC_PORT=str(self.ports["fallback_g"]),
            # One node: no HAProxy of another has to hear first that a replica goes.
            RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S="1",
            # Beside those of another cluster on this machine; a socket's path must be short.
            RAY_SERVE_HAPROXY_CONFIG_FILE_LOC=f"{self.haproxy}/haproxy.cfg",
            RAY_SERVE_HAPROXY_SOCKET_PATH=f"{self.haproxy}/admin.sock",
            RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH=f"{self.haproxy}/metrics.sock",
            RAY_SERVE_HAPROXY_SERVER_STATE_BASE=self.haproxy,
            RAY_SERVE_HAPROXY_SERVER_STATE_FILE=f"{self.haproxy}/server-state",
            PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        )  # fmt: skip
        tests = str(CHECKOUT / "tests" / "integration")
        self.environ["PYTHONPATH"] += os.pathsep + tests
        self.nodes: list[Node] = []

    def own_code(self) -> Path:
        """Lets it run a copy of the sources, which a test may change. Call it before the start."""
        copy = self.folder / "code"
        for package in CHECKOUT.glob("*/__init__.py"):
            shutil.copytree(package.parent, copy / package.parent.name)
        self.environ["PYTHONPATH"] = f"{copy}{os.pathsep}{self.environ['PYTHONPATH']}"
        return copy

    def write(self, folder: Path, models: dict[str, Any], **sections: Any) -> Path:
        """A settings file for this cluster's gateways."""
        folder.mkdir(exist_ok=True)
        file = folder / "settings.yaml"
        file.write_text(yaml.safe_dump({"models": models, "gateway": self.gateway} | sections))
        return file

    @property
    def url(self) -> str:
        return f"http://{self.gateway['host']}:{self.gateway['port']}"

    @property
    def address(self) -> str:
        """Of its dashboard."""
        return self.environ["RAY_API_SERVER_ADDRESS"]

    def apply(self, file: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return self.headrace("apply", str(file), "--address", self.address, *words)

    def headrace(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*HEADRACE, *arguments], env=self.environ, capture_output=True, text=True,
            timeout=patient(120),
        )  # fmt: skip

    def exported(self) -> dict[str, str]:
        """As the `eval` of a shell."""
        shown = self.headrace("cluster", "env", str(self.file), "--json")
        return {each["name"]: each["value"] for each in json.loads(shown.stdout)}

    def start_head(self) -> None:
        gcs, dashboard = self.ports["gcs"], self.ports["dashboard"]
        self.start("--head", f"--port={gcs}", f"--dashboard-port={dashboard}",
                   f"--node-ip-address={HERE}", **self.exported())  # fmt: skip
        self.until_nodes(1)

    def start(self, *arguments: str, **own: str) -> None:
        command = [*RAY, "start", "--block", "--num-cpus=4", "--object-store-memory=80000000",
                   "--min-worker-port=0", "--max-worker-port=0",
                   f"--dashboard-agent-listen-port={free_port()}", *arguments]  # fmt: skip
        log = self.folder / f"ray-{len(self.nodes)}.log"
        self.nodes.append(Node(command, self.environ | own, log))

    def rest(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return http.request(
            method, f"{self.address}{path}", json=body,
            headers={"Authorization": f"Bearer {TOKEN}"}, timeout=patient(30),
        )  # fmt: skip

    def until_nodes(self, count: int) -> None:
        def alive() -> bool:
            for node in self.nodes:
                node.start_if_ended()
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

    def clear(self) -> None:
        """Nothing is deployed any more, of Headrace or of others."""
        self.headrace("stop", "--address", self.address)
        put = self.rest("PUT", "/api/serve/applications/", {"applications": []})
        assert put.status_code == 200, put.text
        until(lambda: not self.replicas(""), 60)

    def processes(self) -> list[psutil.Process]:
        """All that the nodes started, by what only they have in their environment."""
        mark = str(self.folder / "state")
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("XDG_STATE_HOME") == mark:
                    found.append(process)
        return found

    def listening(self, name: str = "") -> dict[int, str]:
        """Addresses by port, of processes called `name` or of all."""
        found = [each for each in self.processes() if name in ("", name_of(each))]
        return {port: ip for process in found for ip, port in listens_on(process)}

    def replicas(self, title: str) -> set[int]:
        """Pids of replicas by how their application and deployment begin: `model-a:model`."""
        return self.actors(f"ServeReplica:{title}")

    def actors(self, title: str) -> set[int]:
        """Pids of actors by how the names of their classes begin."""
        begins = f"ray::{title}"
        found = set()
        for process in self.processes():
            with contextlib.suppress(psutil.Error, IndexError):
                if process.cmdline()[0].startswith(begins):
                    found.add(process.pid)
        return found

    def end(self) -> None:
        """At once: a node that is asked to end lets its replicas finish for half a minute."""
        for node in reversed(self.nodes):
            node.kill()
        while left := self.processes():
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=1)
        shutil.rmtree(self.haproxy, ignore_errors=True)


class Node:
    """`ray start --block`. A raylet ends by itself where its agents are not there within 15 s,
    which a busy machine can miss: whoever supervises nodes starts them anew."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        self._command, self._env, self._log = command, env, log
        self._process = self._started()

    def start_if_ended(self) -> None:
        if self._process.poll() is not None:
            self._process = self._started()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command, env=self._env, stdout=log, stderr=log, start_new_session=True,
                cwd=self._log.parent,  # it comes first on its processes' import path
            )  # fmt: skip


def until(condition: Any, limit_s: float) -> None:
    end = time.monotonic() + patient(limit_s)
    while True:
        with contextlib.suppress(httpx.HTTPError, KeyError, ValueError):
            if condition():
                return
        assert time.monotonic() < end, f"not within {patient(limit_s):g} s"
        time.sleep(0.2)


def get(url: str) -> int:
    return http.get(url, timeout=5).status_code
