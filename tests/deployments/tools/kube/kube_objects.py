"""Objects of a release as the Kubernetes API answers them: what KubeRay 1.7 makes, and what
kubelets, the scheduler and admission say of it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
THEN = "2026-11-22T11:57:00Z"
CLUSTER = "demo-headrace-2xkqv"
NAMESPACE = "serving"
Object = dict[str, Any]


def pod(name: str, group: str = "mig", **more: Any) -> Object:
    """Running and ready, but for what `status` and `spec` say; `labels` are added."""
    kind = "head" if group == "head" else "worker"
    labels = {
        "ray.io/cluster": CLUSTER,
        "ray.io/group": "headgroup" if group == "head" else group,
        "ray.io/node-type": kind,
        "app.kubernetes.io/instance": "demo",
    }
    container = {
        "name": "ray",
        "image": "registry.example.org/headrace:0.1.0",
        "resources": {"limits": {"cpu": "2", "memory": "12Gi"}},
    }
    status = {
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True"}, ready(True)],
        "containerStatuses": [container_status({"running": {"startedAt": THEN}})],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": labels | more.get("labels", {}),
            "creationTimestamp": "2026-11-22T11:00:00Z",
            **more.get("metadata", {}),
        },
        "spec": {"nodeName": "node-1", "containers": [container]} | more.get("spec", {}),
        "status": status | more.get("status", {}),
    }


def ready(is_ready: bool) -> Object:
    return {"type": "Ready", "status": "True" if is_ready else "False"}


def container_status(state: Object, name: str = "ray", **more: Any) -> Object:
    return {
        "name": name,
        "image": "registry.example.org/headrace:0.1.0",
        "restartCount": 0,
        "state": state,
        **more,
    }


def waiting(reason: str, message: str = "", **more: Any) -> Object:
    """The status of a pod whose one container waits."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "True"}, ready(False)],
        "containerStatuses": [container_status(state, **more)],
    }


def unschedulable(message: str) -> Object:
    said = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
        "lastTransitionTime": THEN,
    }  # fmt: skip
    return {"phase": "Pending", "conditions": [said], "containerStatuses": []}


def mig_limits(profile: str = "1g.18gb") -> Object:
    """A pod's spec that asks for a slice and has no node yet."""
    limits = {"cpu": "2", "memory": "12Gi", f"nvidia.com/mig-{profile}": "1"}
    return {"containers": [{"name": "ray", "resources": {"limits": limits}}], "nodeName": ""}


def event(reason: str, message: str, name: str, kind: str = "Pod", **more: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "type": "Warning",
        "metadata": {"name": f"{name}.{abs(hash((reason, message))):x}"},
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
        "message": message,
        "lastTimestamp": THEN,
        **more,
    }


def group(name: str, replicas: int, **more: Any) -> Object:
    spec = mig_limits() if "mig" in name else {"containers": [{"name": "ray"}]}
    resources = {"resources": json.dumps(json.dumps({"mig_1g_18gb": 1}))} if "mig" in name else {}
    start = {"num-cpus": "2", "num-gpus": "1" if "mig" in name else "0", **resources}
    return {
        "groupName": name,
        "replicas": replicas,
        "minReplicas": replicas,
        "rayStartParams": start,
        "template": {"spec": spec},
        **more,
    }


GROUPS = [
    group("gateways", 1, labels={"headrace.io/role": "gateway"}),
    group("mig", 2),
    group("cpu", 0),
]


def ray_cluster(**status: Any) -> Object:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": CLUSTER},
        "spec": {
            "headGroupSpec": {"template": {"spec": {"containers": []}}},
            "workerGroupSpecs": GROUPS,
        },
        "status": status,
    }


def ray_service(applications: Object | None = None, **status: Any) -> Object:
    """Of two models, one on slices and one on processors. `applications`: what Serve says."""
    said = {"gateway": {"status": "RUNNING"}} if applications is None else applications
    active = {"rayClusterName": CLUSTER, "applicationStatuses": said}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "demo-headrace", "labels": {"app.kubernetes.io/instance": "demo"}},
        "spec": {
            "serveConfigV2": json.dumps(SERVE_CONFIG),
            "rayClusterConfig": {"workerGroupSpecs": GROUPS},
        },
        "status": {
            "activeServiceStatus": active,
            "conditions": [{"type": "Ready", "status": "True"}],
            **status,
        },
    }


def _application(name: str, deployment: str, options: Object, **more: Any) -> Object:
    return {
        "name": name,
        "deployments": [{"name": deployment, "ray_actor_options": options, **more}],
    }


SERVE_CONFIG: Object = {
    "applications": [
        _application(
            "gateway", "gateway",
            {"num_cpus": 1, "label_selector": {"headrace.io/role": "gateway"}}, num_replicas=1,
        ),
        {"name": "headrace-control"},
        _application(
            "model-minilm", "model",
            {"num_cpus": 1, "num_gpus": 1, "resources": {"mig_1g_18gb": 1}},
            autoscaling_config={"min_replicas": 1, "max_replicas": 4},
        ),
        _application("model-small", "model", {"num_cpus": 2, "num_gpus": 0}, num_replicas=2),
    ]
}  # fmt: skip
