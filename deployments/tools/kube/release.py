"""Makes the table of a release: a row for every pod, and for pods that should exist but do not.

Each row says why its pod is not ready. The functions take a `Snapshot` and connect to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from deployments.tools.kube import events, pods
from deployments.tools.kube.applications import applications
from deployments.tools.kube.types import (
    CLUSTER_STATUSES,
    Application,
    Cause,
    Kind,
    Object,
    Row,
    Snapshot,
    condition,
    labels_of,
    name_of,
    time_of,
)

_INSTANCE = "app.kubernetes.io/instance"
# Reasons of events. Source: KubeRay `utils/constant.go`; `FailedCreate` is Kubernetes' own, of Jobs
# and DaemonSets.
_NOT_CREATED = {"FailedToCreateWorkerPod", "FailedToCreateHeadPod", "FailedCreate"}
_OF_SERVICE = {
    "InvalidRayServiceSpec", "InvalidRayServiceMetadata", "InvalidRayClusterSpec",
    "FailedToUpdateServeApplications", "FailedToUpdateTargetCapacity",
    "FailedToCreateRayCluster", "FailedToUpdateRayCluster", "FailedToCreateService",
}  # fmt: skip


def clusters_of(service: Object) -> list[str]:
    """Names of the RayService's RayClusters: the one that serves, then the one to replace it."""
    status = service.get("status", {})
    found = [status.get(each, {}).get("rayClusterName") for each in CLUSTER_STATUSES]
    return list(dict.fromkeys(name for name in found if name))


def belongs(pod: Object, service: Object) -> bool:
    """Whether the pod is one of the service's clusters, or the same release's check, test or
    prewarm pod."""
    if pods.cluster(pod) in clusters_of(service):
        return True
    instance = labels_of(service).get(_INSTANCE)
    return instance is not None and labels_of(pod).get(_INSTANCE) == instance


def rows(snapshot: Snapshot) -> list[Row]:
    """Head, then gateways, then groups by name; in each group missing pods come last."""
    found = applications(snapshot.service)
    made = [_row(pod, snapshot, found) for pod in snapshot.pods]
    made += [row for name in snapshot.clusters for row in _missing(snapshot, name, found)]
    order = {"head": 0, "gateways": 1}
    return sorted(made, key=lambda r: (order.get(r.group, 2), r.group, r.missing, r.pod))


def not_running(snapshot: Snapshot) -> list[Application]:
    return [each for each in applications(snapshot.service) if not each.runs]


def service_cause(snapshot: Snapshot) -> Cause | None:
    """Why KubeRay does not call the RayService ready; None if it does."""
    service = snapshot.service
    ready = condition(service, "Ready")
    event = events.newest(snapshot.events, "RayService", name_of(service), _OF_SERVICE)
    if ready is not None and ready["status"] == "True":
        return None
    if event is not None:
        mend = "correct what the message names; then `headrace check FILE` and `helm upgrade`"
        return Cause(Kind.SERVE, str(event["reason"]), events.text(event), mend, events.when(event))
    if ready is None:
        mend = "check that KubeRay's operator runs and watches this namespace"
        return Cause(Kind.START, "KubeRay", "its status is empty", mend)
    said = f"{ready.get('reason', '')}: {ready.get('message', '')}".strip(": ")
    mend = "see the pods and models below: all that are not optional must run first"
    since = time_of(ready.get("lastTransitionTime"))
    return Cause(Kind.SERVE, "its applications", said, mend, since)


def concerning(
    target: str, made: Sequence[Row], found: Sequence[Application]
) -> tuple[list[Row], list[Application]]:
    """The rows and applications of `target`: a pod, a group or a model; ([], []) if unknown."""
    models = [each for each in found if target in (each.model, each.name)]
    if models:
        groups = {group for each in models for group in each.groups}
        return [row for row in made if row.group in groups], models
    return [row for row in made if target in (row.pod, row.group)], []


def _row(pod: Object, snapshot: Snapshot, found: list[Application]) -> Row:
    group = pods.group(pod)
    return Row(
        pod=name_of(pod),
        group=group,
        cluster=pods.cluster(pod),
        node=str(pod["spec"].get("nodeName", "")),
        device=pods.device(pod),
        phase=pods.phase(pod),
        ready=pods.is_ready(pod),
        restarts=pods.restarts(pod),
        created=time_of(pod["metadata"].get("creationTimestamp")),
        models=tuple(each.model for each in found if group in each.groups),
        waits_for=pods.cause(pod, snapshot.events, snapshot.claims),
    )


def _missing(snapshot: Snapshot, name: str, found: list[Application]) -> Iterator[Row]:
    """A row for each group of a cluster with fewer pods than its `replicas`, a number that Ray's
    autoscaler sets."""
    spec = snapshot.clusters[name].get("spec", {})
    existing = [pods.group(pod) for pod in snapshot.pods if pods.cluster(pod) == name]
    wanted = [("head", 1, spec.get("headGroupSpec", {}))]
    wanted += [(g["groupName"], _count(g), g) for g in spec.get("workerGroupSpecs") or ()]
    for group, count, group_spec in wanted:
        missing = count - existing.count(group)
        if missing > 0:
            yield Row(
                pod="",
                group=group,
                cluster=name,
                node="",
                device=pods.device({"spec": _pod_spec(group_spec)}),
                phase="not created",
                ready=False,
                restarts=0,
                created=None,
                models=tuple(each.model for each in found if group in each.groups),
                waits_for=_not_created(snapshot, name, group),
                missing=missing,
            )


def _count(group: Any) -> int:
    return int(group.get("replicas") or group.get("minReplicas") or 0)


def _pod_spec(group: Any) -> Any:
    return group.get("template", {}).get("spec") or {"containers": []}


def _not_created(snapshot: Snapshot, cluster: str, group: str) -> Cause:
    """Why a group's pods were not created, from what the API server answered KubeRay.

    KubeRay reports the answer as an event of the RayCluster; the answer names the pod, and the
    pod's name begins with its cluster and group.
    """
    prefix = f'pods "{cluster}-{group}-'
    matching = [
        each
        for each in snapshot.events
        if prefix in each.get("message", "") or 'pods "' not in each.get("message", "")
    ]
    event = events.newest(matching, "RayCluster", cluster, _NOT_CREATED)
    if event is not None:
        said, since = events.text(event), events.when(event)
        return refused(said, since)
    failure = condition(snapshot.clusters[cluster], "ReplicaFailure")
    if failure is not None and failure["status"] == "True":
        return refused(str(failure.get("message")), time_of(failure.get("lastTransitionTime")))
    mend = "read the operator's log: kubectl -n kuberay-operator logs deploy/kuberay-operator"
    return Cause(Kind.CREATION, "KubeRay", "no event of the last hour says why", mend)


def refused(said: str, since: Any) -> Cause:
    """The cause that the API server's refusal `said` of a pod amounts to.

    Source: Kubernetes' admission `resourcequota/controller.go` ("exceeded quota: …", "failed quota:
    … must specify …") and `podsecurity`.
    """
    for word in ("exceeded quota: ", "failed quota: "):
        if word in said:
            rest = said.split(word, 1)[1]
            quota = rest.split(",")[0].split(":")[0].strip()
            mend = f"`kubectl describe quota {quota}`: a larger one, or fewer or smaller pods"
            return Cause(Kind.QUOTA, word + rest, said, mend, since)
    if "violates PodSecurity" in said:
        mend = "cache.type other than hostPath, or the namespace's pod-security label"
        return Cause(Kind.CREATION, "pod security", said, mend, since)
    return Cause(Kind.CREATION, "the API server", said, "correct what the message names", since)
