"""Sentences of kube-scheduler 1.29 to 1.37: FitError and the reasons of plugins."""

from __future__ import annotations

import pytest

from deployments.tools.kube.scheduling import cause
from deployments.tools.kube.types import Kind

SAID = {
    # NVIDIA/k8s-device-plugin#430, with a slice's resource.
    "0/1 nodes are available: 1 Insufficient nvidia.com/mig-1g.18gb. preemption: 0/1 nodes are "
    "available: 1 No preemption victims found for incoming pod..": (
        Kind.DEVICE, "nvidia.com/mig-1g.18gb: not enough on 1 of 1 nodes",
    ),
    # What is nearest to a place is what it waits for: the other nodes were never meant.
    "0/6 nodes are available: 1 Insufficient nvidia.com/mig-1g.24gb, 1 node(s) were unschedulable, "
    "4 node(s) didn't match Pod's node affinity/selector. preemption: 0/6 nodes are available: 1 "
    "No preemption victims found for incoming pod, 5 Preemption is not helpful for scheduling.": (
        Kind.DEVICE, "nvidia.com/mig-1g.24gb: not enough on 1 of 6 nodes",
    ),
    "0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient memory, 1 node(s) had untolerated "
    "taint {node-role.kubernetes.io/control-plane: }.": (
        Kind.RESOURCES, "cpu, memory: not enough on 2 of 3 nodes",
    ),
    "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had "
    "untolerated taint {node-role.kubernetes.io/control-plane: }. preemption: 0/2 nodes are "
    "available: 2 Preemption is not helpful for scheduling.": (
        Kind.UNSCHEDULABLE, "node(s) didn't match Pod's node affinity/selector (1 of 2 nodes)",
    ),
    # The taint's name went from the sentence in 1.34.
    "0/17 nodes are available: 17 node(s) had untolerated taint(s). no new claims to deallocate, "
    "preemption: 0/17 nodes are available: 17 Preemption is not helpful for scheduling.": (
        Kind.UNSCHEDULABLE, "node(s) had untolerated taint(s) (17 of 17 nodes)",
    ),
    "0/2 nodes are available: 2 node(s) were unschedulable.": (
        Kind.UNSCHEDULABLE, "node(s) were unschedulable (2 of 2 nodes)",
    ),
    "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules.": (
        Kind.UNSCHEDULABLE, "node(s) didn't match pod anti-affinity rules (3 of 3 nodes)",
    ),
    "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/2 "
    "nodes are available: 2 Preemption is not helpful for scheduling.": (
        Kind.VOLUME, "pod has unbound immediate PersistentVolumeClaims",
    ),
    '0/2 nodes are available: persistentvolumeclaim "demo-headrace-models" not found.': (
        Kind.VOLUME, 'persistentvolumeclaim "demo-headrace-models" not found',
    ),
    "0/2 nodes are available: 2 node(s) had volume node affinity conflict.": (
        Kind.VOLUME, "node(s) had volume node affinity conflict (2 of 2 nodes)",
    ),
    # Dynamic resource allocation, 1.34.
    "0/2 nodes are available: 1 cannot allocate all claims, 1 node(s) didn't match Pod's node "
    "affinity/selector. still not schedulable, preemption: 0/2 nodes are available: 2 Preemption "
    "is not helpful for scheduling.": (Kind.DEVICE, "cannot allocate all claims (1 of 2 nodes)"),
    "no nodes available to schedule pods": (Kind.UNSCHEDULABLE, "there are no nodes"),
}  # fmt: skip


@pytest.mark.parametrize(("said", "wanted"), SAID.items())
def test_it_waits_for_what_is_nearest_to_a_place(said, wanted):
    found = cause(said, None)
    assert (found.kind, found.what) == wanted
    assert found.evidence == said
    assert found.mend


def test_a_sentence_of_another_scheduler_is_repeated():
    found = cause("Resources were not found for pod serving/x. Others too.", None)
    assert (found.kind, found.what) == (
        Kind.UNSCHEDULABLE,
        "Resources were not found for pod serving/x",
    )
