"""Why did the scheduler find no node for a pod? The answer is read from the scheduler's message.

The message counts nodes by the filter that excluded them. Filters run in a fixed order: taints,
affinity, resources, volumes, spread, other pods. A node that a later filter excluded passed the
earlier ones and so came closest; the latest filter is therefore reported as the cause.

Sources: kube-scheduler `framework/types.go` (FitError), `plugins/` of noderesources,
tainttoleration, nodeaffinity, volumebinding, dynamicresources; the default order in
`apis/config/v1/default_plugins.go`.
"""

from __future__ import annotations

import re
from datetime import datetime

from deployments.tools.kube.types import Cause, Kind

_NODES = re.compile(r"0/(\d+) nodes are available: (.*)", re.DOTALL)
# Begins the part about device claims and preemption, which is not about why nodes were excluded.
_END = re.compile(r"\s*(?:no new claims to deallocate|still not schedulable|preemption:)")
_PART = re.compile(r"(\d+) (.*?)(?=, \d+ |\.?$)", re.DOTALL)
_DEVICES = ("nvidia.com/", "amd.com/", "gpu.", "tpu.")


def cause(message: str, since: datetime | None) -> Cause:
    """`message` is that of the condition PodScheduled, or of an event FailedScheduling."""
    nodes, parts = _parts(message)
    for kind, pattern, mend in _RULES:
        found = [(count, said) for count, said in parts if re.search(pattern, said)]
        if found:
            return Cause(kind, _what(kind, found, nodes), message, mend, since)
    if nodes == 0 or "no nodes available" in message:
        return Cause(Kind.UNSCHEDULABLE, "there are no nodes", message, "kubectl get nodes", since)
    return Cause(Kind.UNSCHEDULABLE, message.split(".")[0], message, _DESCRIBE, since)


def _parts(message: str) -> tuple[int, list[tuple[int, str]]]:
    """The number of nodes (-1: unknown), and reasons with the number of nodes that each excludes;
    the number is 0 for a reason about the pod itself."""
    match = _NODES.search(message)
    if match is None:
        return -1, [(0, message)]
    said = _END.split(match[2])[0].strip().rstrip(".,")
    parts = [(int(count), reason.strip()) for count, reason in _PART.findall(said)]
    return int(match[1]), parts or [(0, said)]


def _what(kind: Kind, found: list[tuple[int, str]], nodes: int) -> str:
    insufficient = [said.removeprefix("Insufficient ") for _, said in found]
    if kind in (Kind.DEVICE, Kind.RESOURCES) and insufficient[0] != found[0][1]:
        count = max(count for count, _ in found)
        return f"{', '.join(insufficient)}: not enough on {count} of {nodes} nodes"
    return ", ".join(
        f"{said} ({count} of {nodes} nodes)" if count else said for count, said in found
    )


_DESCRIBE = "`kubectl describe pod` says what each node lacks"
_FREE = (
    "`kubectl describe nodes` says what is allocated; a smaller minReplicas, a free device, or "
    "another layout (headrace plan mig)"
)
_DEVICE = f"^Insufficient ({'|'.join(re.escape(each) for each in _DEVICES)})"
# The latest filters first. Kind, pattern of the reason, what to do.
_RULES: tuple[tuple[Kind, str, str], ...] = (
    (
        Kind.VOLUME,
        r"PersistentVolumeClaim|persistentvolumeclaim|persistent volume|[Vv]olume|max volume count",
        "`kubectl get pvc,storageclass`: storage.pvc.storageClassName or existingClaim",
    ),
    (
        Kind.DEVICE,
        r"cannot allocate all claims|resourceclaim|ResourceClaim",
        "`kubectl get resourceslices,deviceclasses`: is there such a device, and a free one?",
    ),
    (Kind.DEVICE, _DEVICE, _FREE),
    (
        Kind.RESOURCES,
        r"^Insufficient |^Too many pods",
        "less cpu or memory for the group, or larger nodes",
    ),
    (
        Kind.UNSCHEDULABLE,
        r"anti-affinity|pod affinity|topology spread",
        "change the group's affinity, or add a node",
    ),
    (
        Kind.UNSCHEDULABLE,
        r"node affinity/selector|node selector",
        "compare the group's nodeSelector and affinity with `kubectl get nodes --show-labels`",
    ),
    (
        Kind.UNSCHEDULABLE,
        r"untolerated taint|had taint",
        "a toleration in the group's tolerations, or `kubectl describe nodes | grep Taints`",
    ),
    (
        Kind.UNSCHEDULABLE,
        r"were unschedulable",
        "`kubectl uncordon NODE` once its maintenance is over",
    ),
)
