"""A release of the chart whose pods run: Helm renders and stores it, pods start on machines of a
`Lab` as a kubelet would start them, an operator's PUT does the rest.

Pods have this machine's files, or are containers of the image that HEADRACE_TEST_IMAGE names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from deployments.gateway.tenancy.tenants import new_key
from tests.cluster.container_nodes import ContainerNode, has_image
from tests.cluster.machines import CannotMakeMachines, Lab
from tests.cluster.pod_nodes import PodNode, Stored
from tests.cluster.rendered_nodes import RenderedNodes
from tests.cluster.steady_load import infer
from tests.kube.api_server import Store
from tests.kube.chart import CHART, RELEASE, Object, merged, ray_service, values_of
from tests.kube.helm_client import helm_and_store

IMAGE = os.environ.get("HEADRACE_TEST_IMAGE", "")  # of the containers; none: this machine's files
KEY, HASH = new_key()
BATCH_KEY, BATCH_HASH = new_key()
IDS = [5, 6, 7]
TENANTS_PATH = "/etc/headrace/tenants"
# Of every release here: who may call, and pods that several of which fit on one computer.
BASIS = f"""
gateway: {{tenants_path: {TENANTS_PATH}}}
tenantFiles:
  config: {{tenants: {{acme: {{weight: 3}}, batch: {{priority: bulk}}}}}}
  existingSecrets: [acme-keys, batch-keys]
head: {{memory: 3Gi, objectStore: 128Mi}}
gateways: {{memory: 2Gi, objectStore: 128Mi}}
"""
_HELM_S = 60


def secret(tenant: str, *hashes: str) -> dict[str, str]:
    return {f"{tenant}.yaml": yaml.safe_dump({"tenants": {tenant: {"keys": [*hashes]}}})}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@dataclass
class Release:
    """Of Helm, and the nodes that run it."""

    helm: Any
    store: Store
    nodes: RenderedNodes
    values: dict[str, Any]

    @property
    def service(self) -> Object:
        return ray_service(list(self.store.objects.values()))

    def upgrade(self, base_ms: int) -> None:
        """The model `quick` takes so long."""
        quick = self.values["models"]["quick"] | {"options": {"base_ms": base_ms}}
        models = self.values["models"] | {"quick": quick}
        self.helm.upgrade(CHART, RELEASE, self.values | {"models": models}, timeout=_HELM_S)

    def rollback(self) -> None:
        self.helm.rollback(RELEASE, timeout=_HELM_S)

    def served_ms(self) -> float:
        """By `quick`, of the fastest of some requests."""
        url = self.nodes.urls()[0]
        answers = [infer(url, "quick", IDS, **bearer(KEY)) for _ in range(5)]
        return min(float(answer.headers["x-service-time-ms"]) for answer in answers)


@contextmanager
def released(values: dict[str, Any]) -> Iterator[Release]:
    """The nodes run when it is there; what their containers said is shown where they do not.
    `values`: beside `BASIS`, section by section. Skips where nothing of it can run; of an
    image, fails."""
    if not IMAGE:
        pytest.importorskip("helm_python", reason="THE CHART IS NOT RUN: `make kube` brings Helm")
    for name, section in values_of(BASIS).items():
        values[name] = section | values.get(name, {})
    if IMAGE:
        repository, _, tag = IMAGE.rpartition(":")
        values["image"] = {"repository": repository, "tag": tag}
    with helm_and_store() as (helm, store):
        helm.install(CHART, RELEASE, values, timeout=_HELM_S)
        maps = {name: each["data"] for name, each in store.of_kind("ConfigMap").items()}
        secrets = {"acme-keys": secret("acme", HASH), "batch-keys": secret("batch", BATCH_HASH)}
        program = merged(values)["image"]["haproxy"]
        try:
            if IMAGE:
                has_image(IMAGE)
            with Lab() as lab:
                service = ray_service(list(store.objects.values()))
                kind = ContainerNode if IMAGE else PodNode
                nodes = RenderedNodes(lab, service, Stored(secrets, maps), program, kind)
                try:
                    print(f"started in {nodes.start():.0f} s, {len(nodes.replaced)} replaced; "
                          f"ready after {nodes.ready_s}")  # fmt: skip
                    yield Release(helm, store, nodes, values)
                finally:
                    print(nodes.logs())
        except CannotMakeMachines as reason:
            stop = pytest.fail if IMAGE else pytest.skip  # who names an image wants it tried
            stop(f"THE CHART IS NOT RUN: {reason}")
