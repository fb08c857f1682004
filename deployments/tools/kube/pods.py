"""In what state is one pod, and why is it not ready?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deployments.tools.kube import containers, scheduling
from deployments.tools.kube.types import (
    Cause,
    Kind,
    Object,
    condition,
    labels_of,
    name_of,
    time_of,
)

_MIG = "nvidia.com/mig-"
_GPU = "gpu"
# Reasons for which a kubelet refuses a pod that the scheduler has sent it.
_REFUSED = {"UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods", "NodeAffinity"}


def cause(pod: Object, pod_events: Sequence[Object], claims: Sequence[Object] = ()) -> Cause | None:
    """Why the pod is not ready; None if nothing is wrong. `claims`: PersistentVolumeClaims."""
    status = pod.get("status", {})
    if pod["metadata"].get("deletionTimestamp"):
        return _drains(pod)
    if status.get("phase") == "Succeeded":
        return None
    if status.get("phase") == "Failed":
        return _failed(pod, pod_events)
    scheduled = condition(pod, "PodScheduled")
    if scheduled is not None and scheduled["status"] == "False":
        return _unscheduled(pod, scheduled, claims)
    found = containers.cause(pod, pod_events)
    if found is not None or is_ready(pod):
        return found
    if status.get("phase") == "Running":
        return containers.not_ready(pod, pod_events)
    waits = "a node" if scheduled is None else "its node's kubelet"
    return Cause(Kind.START, waits, f"phase {status.get('phase')}", "kubectl describe pod", None)


def is_ready(pod: Object) -> bool:
    ready = condition(pod, "Ready")
    return ready is not None and ready["status"] == "True"


def restarts(pod: Object) -> int:
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return sum(int(each.get("restartCount", 0)) for each in statuses)


def phase(pod: Object) -> str:
    """What kubectl shows as the pod's status: Terminating, a failure's reason, or the phase."""
    status = pod.get("status", {})
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return str(status.get("reason") or status.get("phase") or "Unknown")


def group(pod: Object) -> str:
    """`head`, `gateways` or a worker group's name; for other pods of the release, the component."""
    labels = labels_of(pod)
    if labels.get("ray.io/node-type") == "head":
        return "head"
    return labels.get("ray.io/group") or labels.get("app.kubernetes.io/component", "")


def cluster(pod: Object) -> str:
    return labels_of(pod).get("ray.io/cluster", "")


def device(pod: Object) -> str:
    """The pod's MIG profiles, number of GPUs and resource claims, as text; "" for none."""
    limits: dict[str, Any] = {}
    for each in pod["spec"]["containers"]:
        limits |= each.get("resources", {}).get("limits") or {}
    parts = [
        f"{count} x {name.removeprefix(_MIG)}" if str(count) != "1" else name.removeprefix(_MIG)
        for name, count in limits.items()
        if name.startswith(_MIG)
    ]
    parts += [f"{count} {_GPU}" for name, count in limits.items() if name.endswith(f"/{_GPU}")]
    for claim in pod["spec"].get("resourceClaims") or ():
        template = claim.get("resourceClaimTemplateName") or claim.get("resourceClaimName")
        parts.append(f"claim {template}")
    return ", ".join(parts)


def _drains(pod: Object) -> Cause:
    ends = time_of(pod["metadata"]["deletionTimestamp"])
    evidence = f"deletionTimestamp {pod['metadata']['deletionTimestamp']}"
    what = "its replicas to finish" if cluster(pod) else "its end"
    return Cause(Kind.DRAIN, what, evidence, "wait: the kubelet kills it at that time", ends)


def _failed(pod: Object, pod_events: Sequence[Object]) -> Cause:
    status = pod["status"]
    reason, message = str(status.get("reason", "")), str(status.get("message", ""))
    if reason in _REFUSED:
        kind = Kind.DEVICE if "devices" in message else Kind.ADMISSION
        mend = "`kubectl describe node` of its node: has it lost devices since it was chosen?"
        return Cause(kind, reason, f"{reason}: {message}", mend, time_of(status.get("startTime")))
    if reason == "Evicted":
        mend = "resource requests closer to actual use, a larger cache.size, or a larger node"
        return Cause(Kind.ADMISSION, reason, f"Evicted: {message}", mend, None)
    found = containers.cause(pod, pod_events)
    if found is not None:
        return found
    said = f"{reason}: {message}" if reason else "phase Failed"
    return Cause(Kind.CRASH, reason or "it failed", said, f"kubectl describe pod {name_of(pod)}")


def _unscheduled(pod: Object, scheduled: Object, claims: Sequence[Object]) -> Cause:
    message, since = str(scheduled.get("message", "")), time_of(scheduled.get("lastTransitionTime"))
    if scheduled.get("reason") == "SchedulingGated":
        mend = "look at the controller that set the gate, for instance Kueue"
        return Cause(Kind.UNSCHEDULABLE, "a scheduling gate", message, mend, since)
    found = scheduling.cause(message, since)
    unbound = _unbound(pod, claims) if found.kind is Kind.VOLUME else []
    if not unbound:
        return found
    what = f"{', '.join(unbound)}: not bound"
    return Cause(Kind.VOLUME, what, message, f"kubectl describe pvc {unbound[0]}", since)


def _unbound(pod: Object, claims: Sequence[Object]) -> list[str]:
    """Names of the PersistentVolumeClaims that the pod mounts and that have no volume yet."""
    wanted = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"].get("volumes") or ()
        if "persistentVolumeClaim" in volume
    }
    return [
        name_of(each)
        for each in claims
        if name_of(each) in wanted and each.get("status", {}).get("phase") != "Bound"
    ]
