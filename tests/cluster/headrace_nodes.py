"""Headrace on `RayNodes`: the environment of its nodes, its applications, and whether all is well.

Nodes and applications are made as an operator makes them: `headrace cluster env FILE` before `ray
start`, then `headrace apply FILE --address`. Nothing of Headrace runs beside the cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from deployments.contract.app_names import (
    CONTROL_APP,
    GATEWAY_APP,
    GATEWAY_DEPLOYMENT,
    MODEL_DEPLOYMENT,
    model_app,
)
from tests.cluster.machines import CHECKOUT, Lab, Machine
from tests.cluster.ray_nodes import DASHBOARD_PORT, PATIENCE, Node, RayNodes, until

PORT = 8000
_HOME = Path("/tmp/home")
_START_S = 60.0
_TRIES = 10
_GATEWAY = f"ray::ServeReplica:{GATEWAY_APP}:{GATEWAY_DEPLOYMENT}"
_DIRECT_PORTS = range(30_000, 31_001)
_METRICS_PORTS = range(9400, 9500)
_DEVICE = {
    "runtime": "synthetic",
    "task": "tensors",
    "slo": {"latency_ms": 20_000},
    "replicas": {"count": 2, "num_cpus": 1},
}
_HEADRACE = [sys.executable, "-P", "-m", "deployments.cli"]


def on(machine: Machine, path: Path) -> Path:
    """A path of that machine, as seen from here."""
    return machine.root / path.relative_to("/")


def device(**options: Any) -> dict[str, Any]:
    """Settings of two replicas of a pretended device, which sleeps as long as `options` say."""
    return {**_DEVICE, "options": options}


class HeadraceNodes:
    """`folder`: for settings files. `models`, `sections`: as in a file."""

    def __init__(self, lab: Lab, folder: Path, models: Mapping[str, Any], **sections: Any) -> None:
        self._folder = folder
        gateway = {"port": PORT, "replicas": 2}
        self._sections = sections | {"gateway": gateway | sections.get("gateway", {})}
        self.models = dict(models)
        self.ray = RayNodes(lab, self._environment)

    def start(self, workers: int = 2, **env: str) -> None:
        """`env`: of the head alone."""
        self._started_workers, self._started_models = workers, self.models
        self.ray.start_head(**env)
        for _ in range(workers):
            self.ray.add_worker()
        self.deploy(self.models)
        self.until_whole()

    def settings_file(self, models: Mapping[str, Any]) -> Path:
        path = self._folder / "settings.yaml"
        path.write_text(yaml.safe_dump({"models": dict(models), **self._sections}))
        return path

    def _environment(self, machine: Machine) -> dict[str, str]:
        """What an image holds, and what `headrace cluster env` says on that node."""
        kept = {k: os.environ[k] for k in ("PATH", "LANG") if k in os.environ}
        env = kept | {"HOME": str(_HOME), "PYTHONPATH": str(CHECKOUT)}
        file = _HOME / "settings.yaml"
        on(machine, _HOME).mkdir()
        on(machine, file).write_text(self.settings_file(self.models).read_text())
        asked = machine.run(*_HEADRACE, "cluster", "env", str(file), "--json", env=env)
        return env | {each["name"]: each["value"] for each in json.loads(asked.stdout)}

    def headrace(self, *words: str) -> str:
        """A command of somebody who has the cluster's token; what it printed. Fails with what it
        said where it fails."""
        address = f"{self.ray.head.url}:{DASHBOARD_PORT}"
        done = subprocess.run(
            [*_HEADRACE, *words, "--address", address],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), "RAY_AUTH_TOKEN": self.ray.token},
            capture_output=True, text=True, timeout=120 * PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def deploy(self, models: Mapping[str, Any]) -> str:
        """Exactly these models, once they run; what changed."""
        self.models = dict(models)
        return self.headrace("apply", str(self.settings_file(models)))

    # ---- where it runs --------------------------------------------------------------------------

    def urls(self, *but: Node) -> list[str]:
        """The ingress of every node that runs, but these."""
        return [f"{n.url}:{PORT}" for n in self.ray.nodes if n.runs and n not in but]

    def _places(self, app: str, deployment: str) -> Counter[str]:
        """Running replicas by their node's address."""
        replicas = self.ray.applications()[app]["deployments"][deployment]["replicas"]
        return Counter(r["node_ip"] for r in replicas if r["state"] == "RUNNING")

    def gateways(self) -> list[Node]:
        places = self._places(GATEWAY_APP, GATEWAY_DEPLOYMENT)
        return [n for n in self.ray.nodes if places[n.ip]]

    def gateway_urls(self) -> list[str]:
        """Each gateway's own server, past HAProxy, in the order of `gateways`."""
        return [_url(n, _GATEWAY, _DIRECT_PORTS) for n in self.gateways()]

    def metrics_urls(self) -> list[str]:
        """Each gateway's own metrics, in the order of `gateways`."""
        return [_url(n, _GATEWAY, _METRICS_PORTS) for n in self.gateways()]

    def channel_port(self, node: Node, model: str) -> int:
        """Where the model's replica on that node listens for gateways."""
        listening = node.listening(f"ray::ServeReplica:{model_app(model)}:{MODEL_DEPLOYMENT}")
        (port,) = [port for address, port in listening if address == node.ip]
        return port

    def replicas(self, model: str) -> dict[str, int]:
        """How many of the model's replicas run, by node's name."""
        places = self._places(model_app(model), MODEL_DEPLOYMENT)
        return {n.name: places[n.ip] for n in self.ray.nodes if places[n.ip]}

    def replica_ids(self, model: str) -> set[str]:
        app = self.ray.applications()[model_app(model)]
        return {r["replica_id"] for r in app["deployments"][MODEL_DEPLOYMENT]["replicas"]}

    def process(self, title: str) -> tuple[Node, int]:
        """The one process of that name: its node and its pid there. Waits until it is there."""
        until(lambda: bool(self._processes(title)), _START_S, title)
        ((node, pid),) = self._processes(title)
        return node, pid

    def _processes(self, title: str) -> list[tuple[Node, int]]:
        return [(n, pid) for n in self.ray.nodes if n.runs for pid in n.processes(title)]

    def brought_to_a_worker(self, title: str) -> Node:
        """Its node, once Ray has put it on a worker: it is killed until it does."""
        for _ in range(_TRIES):
            node, pid = self.process(title)
            if node is not self.ray.head:
                return node
            node.machine.run("kill", "-9", str(pid))
            until(lambda: (node, pid) not in self._processes(title), 10, "it has ended")  # noqa: B023
            self.until_whole()
        raise AssertionError(f"{title} is on the head every time")

    # ---- whether all is well --------------------------------------------------------------------

    def until_whole(self, limit_s: float = _START_S) -> float:
        """Seconds until every application runs with all its replicas, on nodes that run, and every
        ingress is ready."""
        return until(self.whole, limit_s, "every replica runs and every ingress is ready")

    def whole(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            details = self.ray.serve_details()
            apps = details["applications"]
            if set(apps) != {GATEWAY_APP, CONTROL_APP, *map(model_app, self.models)}:
                return False
            ips = {n.ip for n in self.ray.nodes if n.runs}
            places = {replica.get("node_ip", "") for replica in _replicas(apps)}
            # Serve has an ingress on the head, and on nodes with replicas.
            proxies = {p["node_ip"]: p["status"] for p in details["proxies"].values()}
            return (
                all(_healthy(app) for app in apps.values())
                and places <= ips == self.ray.alive()
                and proxies == dict.fromkeys(places | {self.ray.head.ip}, "HEALTHY")
                and all(_ready(ip) for ip in proxies)
            )
        return False

    def until_joined(self) -> None:
        """Every node that runs is one of Ray's."""
        ips = {n.ip for n in self.ray.nodes if n.runs}
        until(lambda: ips <= self.ray.alive(), _START_S, "the nodes have joined")

    def heal(self) -> float:
        """As it was started: takes away what a test killed or added, puts workers and models back;
        seconds until all is well."""
        for node in [n for n in self.ray.workers if not n.runs]:
            self.ray.remove(node)
        for node in self.ray.workers[self._started_workers :]:
            self.ray.remove(node)
        while len(self.ray.workers) < self._started_workers:
            self.ray.add_worker()
        if self.models != self._started_models:
            self.deploy(self._started_models)
        whole_s = self.until_whole(2 * _START_S)
        for model in self.models:
            self._spread(model)
        return whole_s

    def _spread(self, model: str) -> None:
        """One replica a worker again: Serve puts those of a worker that is lost on what is left,
        and leaves them there."""
        title = f"ray::ServeReplica:{model_app(model)}:{MODEL_DEPLOYMENT}"
        for _ in range(_TRIES):
            crowded = [n for n in self.ray.workers if self.replicas(model).get(n.name, 0) > 1]
            if not crowded:
                return
            victim = crowded[0].processes(title)[0]
            crowded[0].machine.run("kill", "-9", str(victim))
            until(lambda: victim not in crowded[0].processes(title), 10, "it has ended")  # noqa: B023
            until(lambda: not self.whole(), 10, "Serve knows it")
            self.until_whole()
        raise AssertionError(f"replicas of {model} are not spread: {self.replicas(model)}")


def _ready(ip: str) -> bool:
    return httpx.get(f"http://{ip}:{PORT}/readyz", timeout=5).status_code == 200


def _url(node: Node, title: str, ports: range) -> str:
    (port,) = {port for _, port in node.listening(title) if port in ports}
    return f"{node.url}:{port}"


def _replicas(apps: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for app in apps.values():
        for deployment in app["deployments"].values():
            yield from deployment["replicas"]


def _healthy(app: Mapping[str, Any]) -> bool:
    return app["status"] == "RUNNING" and all(
        d["status"] == "HEALTHY"
        and len(d["replicas"]) == d["target_num_replicas"]
        and all(r["state"] == "RUNNING" for r in d["replicas"])
        for d in app["deployments"].values()
    )
