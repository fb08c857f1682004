"""What hardened pods have beyond restricted pod security, by the ids of checkov's checks.

Source: checkov 3.3, `checkov/kubernetes/checks`. It was run by hand (docs/kubernetes.md has the
table); its 265 MB are too many for every run of the tests, so what it asks of pods and we hold
stands here. What that table justifies instead (images' digests, KubeRay's probes) does not.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.kube.chart import Object

_FIRST_FREE_USER = 10_000
_LIMITS = {
    ("requests", "cpu"): "CKV_K8S_10",
    ("limits", "cpu"): "CKV_K8S_11",
    ("limits", "memory"): "CKV_K8S_12",
    ("requests", "memory"): "CKV_K8S_13",
}


def asks_kubernetes(cluster: Object, template: Object) -> bool:
    """Whether the template is of a RayCluster's head, and an autoscaler stands in it; or of the job
    that tells a cluster its numbers of pods."""
    labels = template.get("metadata", {}).get("labels", {})
    is_head = template is cluster["headGroupSpec"]["template"]
    is_job = labels.get("app.kubernetes.io/component") == "scale"
    return is_job or (is_head and cluster.get("enableInTreeAutoscaling") is True)


def weaknesses(template: Object, *, asks_kubernetes: bool = False) -> Iterator[str]:
    """`asks_kubernetes`: of what talks to the Kubernetes API."""
    spec = template["spec"]
    if spec.get("automountServiceAccountToken") is not False and not asks_kubernetes:
        yield "CKV_K8S_38: a token of the Kubernetes API is mounted"
    # Without a user it is the namespace's own (OpenShift), or the image's, which is 10001.
    if spec.get("securityContext", {}).get("runAsUser", _FIRST_FREE_USER) < _FIRST_FREE_USER:
        yield f"CKV_K8S_40: runs as a user below {_FIRST_FREE_USER}, who may be one of the node's"
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        for complaint in _of_container(container):
            yield f"container {container['name']}: {complaint}"


def _of_container(container: Object) -> Iterator[str]:
    resources = container.get("resources", {})
    for (kind, resource), check in _LIMITS.items():
        if resource not in resources.get(kind, {}):
            yield f"{check}: {kind} no {resource}"
    image = container["image"]
    if image.endswith(":latest") or ":" not in image:
        yield f"CKV_K8S_14: image {image} has no fixed tag and no digest"
    if container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
        yield "CKV_K8S_22: can write its own root"
