"""Pods that objects would make, RayServices unfolded, and what restricted pod security says.

Source: Kubernetes' Pod Security Standards, profile restricted; user namespaces and Windows aside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.kube.chart import Object

_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim",
    "projected", "secret",
}  # fmt: skip


def pods(each: Object) -> Iterator[tuple[str, Object]]:
    """Where each pod template stands, and the template."""
    name, spec = f"{each['kind']}/{each['metadata']['name']}", each.get("spec", {})
    if each["kind"] == "Pod":
        yield name, each
    elif each["kind"] in ("Job", "DaemonSet", "Deployment", "StatefulSet"):
        yield name, spec["template"]
    elif each["kind"] == "RayService":
        cluster = spec["rayClusterConfig"]
        yield f"{name} head", cluster["headGroupSpec"]["template"]
        for group in cluster["workerGroupSpecs"]:
            yield f"{name} {group['groupName']}", group["template"]


def as_pod(template: Object, name: str = "pod") -> Object:
    """For the schema of a Pod."""
    metadata = {"name": name, **template.get("metadata", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def insecurities(template: Object) -> Iterator[str]:
    spec = template["spec"]
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield f"{field} is true"
    for volume in spec.get("volumes", ()):
        for kind in volume.keys() - _VOLUMES - {"name"}:
            yield f"volume {volume['name']} is a {kind}"
    of_pod = spec.get("securityContext", {})
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        for complaint in _of_container(container, of_pod):
            yield f"container {container['name']}: {complaint}"


def _of_container(container: Object, of_pod: Mapping[str, Any]) -> Iterator[str]:
    own = container.get("securityContext", {})
    if own.get("privileged"):
        yield "is privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "may escalate its privileges"
    if "ALL" not in own.get("capabilities", {}).get("drop", ()):
        yield "keeps capabilities"
    if set(own.get("capabilities", {}).get("add", ())) - {"NET_BIND_SERVICE"}:
        yield "adds capabilities"
    if own.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is not True:
        yield "may run as root"
    if own.get("runAsUser", of_pod.get("runAsUser")) == 0:
        yield "runs as root"
    profile = own.get("seccompProfile", of_pod.get("seccompProfile", {})).get("type")
    if profile not in ("RuntimeDefault", "Localhost"):
        yield "has no seccomp profile"
    if any("hostPort" in port for port in container.get("ports", ())):
        yield "has a port of its host"
