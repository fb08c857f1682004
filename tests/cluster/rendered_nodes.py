"""A RayService on machines of a `Lab`: what KubeRay's operator does of it, and nothing else.

The head's pod first; once it is ready, `serveConfigV2` as JSON to the dashboard; then workers, one
after the other, since they share this computer: a raylet gives its agents 15 s to start. A worker
whose container ends has a successor: beside Ray's autoscaler a pod's restart policy is Never, and
the operator makes another pod. Later changes are PUT as they are, where they start no other
cluster. Callers reach the workers that are ready, as through the Service of KubeRay's making.
Source: kuberay v1.7, `rayservice_controller.go` (reconcileServe, updateServeDeployment),
`raycluster_controller.go` (shouldDeletePod), `utils/dashboardclient/dashboard_httpclient.go`.
"""

from __future__ import annotations

import copy
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import yaml

from tests.cluster.machines import Lab
from tests.cluster.pod_nodes import PodNode, Stored
from tests.cluster.ray_nodes import PATIENCE, until
from tests.kube.chart import Object
from tests.kube.kuberay import rolls
from tests.kube.operator_pods import TOKEN_KEY, head_name, head_pod, worker_pods

_DASHBOARD_PORT = 8265
_APPLICATIONS = "/api/serve/applications/"
_ANSWER_S = 30.0
_HEAD_S, _RUNS_S = 40.0, 60.0
_PROBE_S = 5.0


class RenderedNodes:
    """`stored`: what the pods name, but for Ray's token. `program`: the path of what stands in
    HAProxy's place in the image. `kind`: what a pod is made of."""

    def __init__(
        self, lab: Lab, service: Object, stored: Stored, program: str, kind: type[PodNode] = PodNode
    ) -> None:
        self._lab, self.service, self._program, self._kind = lab, service, program, kind
        self.cluster_name = f"{service['metadata']['name']}-abcde"
        self.token = secrets.token_hex(32)
        own = {self.cluster_name: {TOKEN_KEY: self.token}}
        self.stored = Stored({**stored.secrets, **own}, stored.config_maps)
        self.workers: list[PodNode] = []
        self.replaced: list[str] = []  # what their containers said
        self.ready_s: dict[str, float] = {}  # by pod, from its start

    def start(self) -> float:
        """Seconds until every application runs and every worker is ready."""
        began = time.monotonic()
        self.head = self._started(head_pod(self.service, self.cluster_name), {})
        self._rest = httpx.Client(
            base_url=f"http://{self.head.ip}:{_DASHBOARD_PORT}",
            headers={"x-ray-authorization": f"Bearer {self.token}"},
            timeout=_ANSWER_S * PATIENCE,
        )
        until(lambda: self.head.passes("readinessProbe"), _HEAD_S, "the head is ready")
        self.ready_s[self.head.name] = self.head.age_s
        self.put(self.service)
        for pod in worker_pods(self.service, self.cluster_name):
            self.workers.append(self._worker(pod))
            self.until(self._last_lives, "the worker lives")
        self.until_all_are_ready()
        self.until_it_runs()
        return time.monotonic() - began

    def _started(self, pod: Object, names: dict[str, str]) -> PodNode:
        return self._kind(self._lab, pod, self.stored, names, self._program)

    def _worker(self, pod: Object) -> PodNode:
        return self._started(pod, {head_name(self.service, self.cluster_name): self.head.ip})

    def replace_ended(self) -> None:
        """Workers whose container has ended, each by a pod of another name."""
        for place, worker in enumerate(self.workers):
            if worker.process.poll() is not None:
                self.replaced.append(said(worker))
                worker.kill()
                pod = copy.deepcopy(worker.pod)
                pod["metadata"]["name"] += f"-{len(self.replaced)}"
                self.workers[place] = self._worker(pod)

    def put(self, service: Object) -> None:
        """A RayService that has changed, of which nothing may start another cluster."""
        old, new = (each["spec"]["rayClusterConfig"] for each in (self.service, service))
        assert not rolls(old, new), "this would be another cluster"
        self.service = service
        body = json.dumps(yaml.safe_load(service["spec"]["serveConfigV2"]))
        answer = self._rest.put(
            _APPLICATIONS, content=body, headers={"content-type": "application/json"}
        )
        assert answer.is_success, answer.text

    # ---- what it has come to --------------------------------------------------------------------

    def applications(self) -> dict[str, Any]:
        """Serve's, by name."""
        answer = self._rest.get(_APPLICATIONS, params={"api_type": "declarative"})
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()["applications"]
        return found

    def until_it_runs(self) -> float:
        """Seconds until every application of the list runs, and none besides."""
        config = yaml.safe_load(self.service["spec"]["serveConfigV2"])
        all_run = dict.fromkeys((each["name"] for each in config["applications"]), "RUNNING")
        return self.until(lambda: self._statuses() == all_run, "every application runs")

    def until_all_are_ready(self) -> float:
        """Seconds until every worker is, those included that take another's place."""
        return self.until(lambda: self.endpoints() == self.workers, "every worker is ready")

    def until(self, condition: Callable[[], bool], what: str) -> float:
        """Seconds until it held; the operator acts meanwhile."""

        def holds() -> bool:
            self.replace_ended()
            return condition()

        try:
            return until(holds, _RUNS_S, what)
        except AssertionError as late:
            raise AssertionError(f"{late}: {self._statuses()}") from late

    def _last_lives(self) -> bool:
        return self.workers[-1].passes("livenessProbe")

    def _statuses(self) -> dict[str, str]:
        return {name: app["status"] for name, app in self.applications().items()}

    def replicas(self) -> dict[str, set[tuple[str, int]]]:
        """Of every `application/deployment`: its processes, by their node's address and their pid
        there."""
        return {
            f"{name}/{each}": {
                (r["node_ip"], r["pid"]) for r in deployment["replicas"] if r["state"] == "RUNNING"
            }
            for name, app in self.applications().items()
            for each, deployment in app["deployments"].items()
        }

    @property
    def pods(self) -> list[PodNode]:
        return [self.head, *self.workers]

    def logs(self) -> str:
        """What the containers of all pods have said, those that were replaced included."""
        return "\n".join([*self.replaced, *map(said, self.pods)])

    def endpoints(self) -> list[PodNode]:
        """Pods that the Service leads to now."""
        found = [
            each for each in self.workers
            if each.labels["ray.io/serve"] == "true" and each.passes("readinessProbe")
        ]  # fmt: skip
        for each in found:
            self.ready_s.setdefault(each.name, each.age_s)
        return found

    def urls(self) -> list[str]:
        """Of the Service's pods."""
        return [f"{each.url}:{each.ports['serve']}" for each in self.endpoints()]

    def of_group(self, name: str) -> list[PodNode]:
        """The pods of a worker group."""
        return [w for w in self.workers if w.labels["ray.io/group"] == name]

    @contextmanager
    def probed(self) -> Iterator[list[bool]]:
        """Every readiness probe meanwhile, as often as kubelets ask: whether it passed. Raises, on
        leaving, what kept a probe from being asked."""
        passed: list[bool] = []
        over = threading.Event()

        def ask() -> None:
            while not over.wait(_PROBE_S):
                passed.extend(each.passes("readinessProbe") for each in self.workers)

        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask)
            try:
                yield passed
            finally:
                over.set()
            asking.result()


def said(pod: PodNode) -> str:
    return f"--- {pod.name}\n{pod.log}"
