from __future__ import annotations

import pytest

from deployments.tools.kube import release
from deployments.tools.kube.api import KubernetesError, chosen
from deployments.tools.kube.applications import applications
from deployments.tools.kube.types import Kind, Snapshot
from tests.deployments.tools.kube.kube_objects import (
    CLUSTER,
    event,
    pod,
    ray_cluster,
    ray_service,
)

# KubeRay v1.7.0 raycluster_controller.go, and kuberay#603 for the API server's answer.
QUOTA = (
    f"Failed to create worker Pod for the cluster serving/{CLUSTER}, pods "
    f'"{CLUSTER}-mig-worker-v4k2p" is forbidden: exceeded quota: gpu-quota, requested: '
    "requests.nvidia.com/mig-1g.18gb=1, used: requests.nvidia.com/mig-1g.18gb=4, limited: "
    "requests.nvidia.com/mig-1g.18gb=4"
)
HEAD, GATEWAY = pod("h", "head"), pod("g", "gateways")


def snapshot(*pods, service=None, **more):
    return Snapshot(
        service or ray_service(), {CLUSTER: ray_cluster(**more.pop("status", {}))}, pods, **more
    )


def test_rows_begin_with_the_head_and_end_with_what_is_not_there():
    made = release.rows(snapshot(pod("m", "mig"), GATEWAY, HEAD))
    assert [(row.pod, row.group, row.missing) for row in made] == [
        ("h", "head", 0), ("g", "gateways", 0), ("m", "mig", 0), ("", "mig", 1),
    ]  # fmt: skip


def test_models_stand_beside_the_groups_that_their_replicas_fit_in():
    made = release.rows(snapshot(HEAD, GATEWAY, pod("m"), pod("n"), pod("c", "cpu")))
    assert {row.pod: row.models for row in made} == {
        "h": (), "g": ("gateway", "small"), "m": ("minilm", "small"), "n": ("minilm", "small"),
        "c": ("small",),
    }  # fmt: skip


def test_replicas_are_what_the_list_allows_and_states_what_serve_says():
    said = {"model-minilm": {"status": "RUNNING"}}
    found = {each.model: each for each in applications(ray_service(said))}
    minilm, small = found["minilm"], found["small"]
    assert (minilm.min_replicas, minilm.max_replicas, minilm.state) == (1, 4, "RUNNING")
    assert (small.min_replicas, small.max_replicas, small.state) == (2, 2, "")


def test_a_deployments_message_is_taken_where_its_application_has_none():
    # Ray 2.60 serve/_private/deployment_state.py
    said = (
        "Deployment 'model' in application 'model-minilm' has 1 replicas that have taken more than "
        "30s to be scheduled. This may be due to waiting for the cluster to auto-scale or for a "
        "runtime environment to be installed."
    )
    statuses = {
        "anchor": {"status": "HEALTHY", "message": ""},
        "model": {"status": "UPDATING", "message": said},
    }
    told = {"model-minilm": {"status": "DEPLOYING", "serveDeploymentStatuses": statuses}}
    found = {each.model: each.message for each in applications(ray_service(told))}
    assert found["minilm"] == said


def test_pods_that_a_quota_forbids_are_a_row():
    events = [
        event("FailedToCreateWorkerPod", QUOTA, CLUSTER, "RayCluster"),
        event("FailedToCreateWorkerPod", QUOTA.replace("-mig-", "-cpu-"), CLUSTER, "RayCluster"),
    ]
    (row,) = [r for r in release.rows(snapshot(HEAD, GATEWAY, events=events)) if r.missing]
    assert (row.group, row.missing, row.device) == ("mig", 2, "1g.18gb")
    assert row.waits_for.kind == Kind.QUOTA
    assert "used: requests.nvidia.com/mig-1g.18gb=4" in row.waits_for.what
    assert "kubectl describe quota gpu-quota" in row.waits_for.mend


def test_without_events_the_clusters_own_condition_says_it():
    failure = {"type": "ReplicaFailure", "status": "True", "message": QUOTA}
    found = snapshot(HEAD, GATEWAY, status={"conditions": [failure]})
    (row,) = [r for r in release.rows(found) if r.missing]
    assert row.waits_for.kind == Kind.QUOTA


def test_pod_security_is_told_apart_from_a_quota():
    said = (
        'pods "x" is forbidden: violates PodSecurity "restricted:latest": restricted volume types '
        '(volume "cache" uses restricted volume type "hostPath")'
    )
    found = release.refused(said, None)
    assert (found.kind, found.what) == (Kind.CREATION, "pod security")
    assert "cache.type" in found.mend


def test_a_quota_that_wants_limits_is_named():
    # Kubernetes `quota/v1/evaluator/core/pods.go`
    said = 'pods "x" is forbidden: failed quota: compute: must specify limits.cpu for: autoscaler'
    found = release.refused(said, None)
    assert (found.kind, found.mend.split("`")[1]) == (Kind.QUOTA, "kubectl describe quota compute")


def test_pods_that_nobody_speaks_of_name_the_operators_log():
    (row,) = [r for r in release.rows(snapshot(HEAD, GATEWAY, pod("m"))) if r.missing]
    assert row.waits_for.kind == Kind.CREATION
    assert "kuberay-operator" in row.waits_for.mend


@pytest.mark.parametrize(
    ("labels", "is_ours"),
    [
        ({"ray.io/cluster": CLUSTER, "app.kubernetes.io/instance": "x"}, True),
        ({"ray.io/cluster": "", "app.kubernetes.io/instance": "demo"}, True),
        ({"ray.io/cluster": "other", "app.kubernetes.io/instance": "other"}, False),
    ],
)
def test_pods_are_those_of_its_clusters_and_its_release(labels, is_ours):
    assert release.belongs(pod("p", labels=labels), ray_service()) is is_ours


def test_both_clusters_of_an_upgrade_are_its_own():
    service = ray_service(pendingServiceStatus={"rayClusterName": "demo-headrace-next"})
    assert release.clusters_of(service) == [CLUSTER, "demo-headrace-next"]
    assert release.clusters_of(ray_service(activeServiceStatus={})) == []


def test_a_service_that_is_not_ready_says_why():
    not_ready = {
        "type": "Ready", "status": "False", "reason": "Initializing",
        "message": "RayService is initializing",
    }  # fmt: skip
    service = ray_service(conditions=[not_ready])
    assert release.service_cause(snapshot(service=service)).evidence == (
        "Initializing: RayService is initializing"
    )
    told = [event("InvalidRayServiceSpec", "no ray start params", "demo-headrace", "RayService")]
    found = release.service_cause(snapshot(service=service, events=told))
    assert found.evidence == "InvalidRayServiceSpec: no ray start params"
    assert release.service_cause(snapshot()) is None


def test_a_model_is_the_pods_that_its_replicas_fit_in():
    found = snapshot(HEAD, GATEWAY, pod("m"), pod("n"), pod("c", "cpu"))
    made, known = release.rows(found), applications(found.service)

    def of(target):
        rows, models = release.concerning(target, made, known)
        return [row.pod for row in rows], [each.model for each in models]

    assert of("minilm") == (["m", "n"], ["minilm"])
    assert of("head") == (["h"], [])
    assert of("gateway") == (["g"], ["gateway"])
    assert of("gateways") == (["g"], [])
    assert of("mig") == (["m", "n"], [])
    assert of("c") == (["c"], [])
    assert of("nothing") == ([], [])


def test_a_release_is_chosen_by_its_name_or_by_being_alone():
    one, other = ray_service(), ray_service()
    other["metadata"] = {"name": "second", "labels": {}}
    assert chosen([one], None, "serving") is one
    assert chosen([one, other], "demo", "serving") is one
    assert chosen([one, other], "second", "serving") is other
    with pytest.raises(KubernetesError, match="name one of them"):
        chosen([one, other], None, "serving")
    with pytest.raises(KubernetesError, match=r"not .* release third \(it contains: demo-headrace"):
        chosen([one], "third", "serving")
    with pytest.raises(KubernetesError, match=r"not .* a RayService \(it contains: none\)"):
        chosen([], None, "serving")
