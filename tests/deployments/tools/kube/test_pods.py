"""Texts are the kubelet's: `images/types.go`, `container/sync_result.go`, `events/event.go`, the
device manager; a registry's answer as containerd repeats it.
"""

from __future__ import annotations

import pytest

from deployments.tools.kube import pods
from deployments.tools.kube.types import Kind
from tests.deployments.tools.kube.kube_objects import (
    THEN,
    container_status,
    event,
    mig_limits,
    pod,
    ready,
    unschedulable,
    waiting,
)

IMAGE = "registry.example.org/headrace:0.1.0"
NOT_FOUND = (
    f'Back-off pulling image "{IMAGE}": ErrImagePull: rpc error: code = NotFound desc = failed to '
    f'pull and unpack image "{IMAGE}": failed to resolve reference "{IMAGE}": {IMAGE}: not found'
)
NO_HOST = (
    f'failed to pull and unpack image "{IMAGE}": failed to resolve reference "{IMAGE}": failed to '
    'do request: Head "https://registry.example.org/v2/headrace/manifests/0.1.0": dial tcp: lookup '
    "registry.example.org: no such host"
)
DENIED = (
    f'Failed to pull image "{IMAGE}": failed to pull and unpack image "{IMAGE}": failed to resolve '
    f'reference "{IMAGE}": pull access denied, repository does not exist or may require '
    "authorization: server message: insufficient_scope: authorization failed"
)
BACK_OFF = "back-off 5m0s restarting failed container=ray pod=p_serving(9f1c)"


def cause_of(told=(), claims=(), **more):
    return pods.cause(pod("p", **more), told, claims)


def test_a_ready_pod_waits_for_nothing():
    assert cause_of() is None


@pytest.mark.parametrize(
    ("reason", "message", "mend"),
    [
        ("ImagePullBackOff", NOT_FOUND, "image.tag"),
        ("ErrImagePull", NO_HOST, "cannot reach"),
        ("InvalidImageName", 'couldn\'t parse image name "A:b": invalid reference', "image.tag"),
    ],
)
def test_an_image_that_cannot_be_pulled_says_whose_fault_it_is(reason, message, mend):
    found = cause_of(status=waiting(reason, message))
    assert (found.kind, found.what) == (Kind.IMAGE, IMAGE)
    assert found.evidence == f"{reason}: {message}"
    assert mend in found.mend


def test_a_back_off_without_the_registrys_answer_takes_it_from_the_event():
    told = [
        event("Failed", DENIED, "p"),
        event("Failed", "Error: ImagePullBackOff", "p", lastTimestamp="2026-11-22T11:59:00Z"),
        event("Failed", NO_HOST, "another"),
    ]
    short = f'Back-off pulling image "{IMAGE}"'
    found = cause_of(told, status=waiting("ImagePullBackOff", short))
    assert "pull access denied" in found.evidence
    assert "pullSecrets" in found.mend
    assert found.since.isoformat() == "2026-11-22T11:57:00+00:00"


def test_a_device_that_no_node_has_free_is_named():
    said = "0/1 nodes are available: 1 Insufficient nvidia.com/mig-1g.18gb."
    found = cause_of(spec=mig_limits(), status=unschedulable(said))
    assert (found.kind, found.since.isoformat()) == (Kind.DEVICE, "2026-11-22T11:57:00+00:00")


def test_a_device_that_went_after_scheduling_is_a_device_too():
    # kubelet `cm/devicemanager/manager.go`
    said = (
        "Allocate failed due to requested number of devices unavailable for "
        "nvidia.com/mig-1g.18gb. Requested: 1, Available: 0, which is unexpected"
    )
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": said}
    found = cause_of(status=status)
    assert (found.kind, found.evidence) == (Kind.DEVICE, f"UnexpectedAdmissionError: {said}")


def test_an_evicted_pod_says_what_its_node_was_low_on():
    said = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi."
    found = cause_of(status={"phase": "Failed", "reason": "Evicted", "message": said})
    assert (found.kind, found.evidence) == (Kind.ADMISSION, f"Evicted: {said}")


def test_an_unbound_claim_is_named():
    said = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    volume = {"name": "models", "persistentVolumeClaim": {"claimName": "demo-headrace-models"}}
    claims = [
        {"metadata": {"name": "demo-headrace-models"}, "status": {"phase": "Pending"}},
        {"metadata": {"name": "another"}, "status": {"phase": "Pending"}},
    ]
    spec = mig_limits() | {"volumes": [volume]}
    found = cause_of(claims=claims, spec=spec, status=unschedulable(said))
    assert (found.kind, found.what) == (Kind.VOLUME, "demo-headrace-models: not bound")
    assert found.mend == "kubectl describe pvc demo-headrace-models"


def test_a_volume_that_cannot_be_mounted_is_told_by_its_event():
    said = 'MountVolume.SetUp failed for volume "tenants" : secret "tenant-keys" not found'
    found = cause_of([event("FailedMount", said, "p")], status=waiting("ContainerCreating"))
    assert (found.kind, found.what) == (Kind.VOLUME, said)


def test_a_claim_that_the_driver_cannot_prepare_is_a_device():
    said = (
        "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources: rpc "
        "error: code = DeadlineExceeded desc = context deadline exceeded"
    )
    told = [event("FailedPrepareDynamicResources", said, "p")]
    assert cause_of(told, status=waiting("ContainerCreating")).kind == Kind.DEVICE


def test_a_container_that_is_being_made_is_no_fault():
    assert cause_of(status=waiting("ContainerCreating")).kind == Kind.START


def test_a_missing_secret_of_the_environment_is_configuration():
    found = cause_of(status=waiting("CreateContainerConfigError", 'secret "redis-auth" not found'))
    assert (found.kind, found.what) == (Kind.CONFIG, 'secret "redis-auth" not found')


def test_a_crash_loop_says_how_it_ended_last():
    ended = {"reason": "Error", "exitCode": 1, "finishedAt": THEN}
    found = cause_of(status=waiting("CrashLoopBackOff", BACK_OFF, lastState={"terminated": ended}))
    assert (found.kind, found.what) == (Kind.CRASH, "ray ended with exit code 1")
    assert BACK_OFF in found.evidence
    assert found.mend == "headrace kube logs p --previous"


def test_a_crash_names_the_container_whose_log_says_why():
    # an init container that fails ends, and waits to be tried again
    ended = {"terminated": {"reason": "Error", "exitCode": 1, "finishedAt": THEN}}
    back_off = {"waiting": {"reason": "CrashLoopBackOff", "message": BACK_OFF}}
    for state, mend in (
        (ended, "kubectl logs p -c artifacts"),
        (back_off, "kubectl logs p -c artifacts --previous"),
    ):
        init = container_status(state, "artifacts", lastState=ended)
        status = waiting("PodInitializing") | {"initContainerStatuses": [init]}
        found = cause_of(status=status)
        assert (found.what, found.mend) == ("artifacts ended with exit code 1", mend)


def test_a_container_killed_for_memory_names_its_limit():
    ended = {"reason": "OOMKilled", "exitCode": 137, "finishedAt": THEN}
    found = cause_of(status=waiting("CrashLoopBackOff", BACK_OFF, lastState={"terminated": ended}))
    assert (found.kind, found.what) == (Kind.CRASH, "OOMKilled at 12Gi")
    assert "exit code 137" in found.evidence


def test_a_worker_that_waits_for_the_head_says_so():
    # KubeRay's init container, `common/pod.go`
    init = container_status({"running": {"startedAt": THEN}}, "wait-gcs-ready")
    status = waiting("PodInitializing") | {"initContainerStatuses": [init]}
    found = cause_of(status=status)
    assert (found.kind, found.what) == (Kind.INIT, "the head (GCS)")


def test_an_init_container_that_is_done_is_not_waited_for():
    init = container_status({"terminated": {"exitCode": 0}}, "wait-gcs-ready")
    status = waiting("PodInitializing") | {"initContainerStatuses": [init]}
    assert cause_of(status=status).kind == Kind.START


def test_a_worker_without_a_replica_is_not_called_broken():
    # docs.ray.io, "RayService worker Pods aren't ready"
    told = [event("Unhealthy", "Readiness probe failed: success\n", "p")]
    found = cause_of(told, status={"conditions": [ready(False)]})
    assert (found.kind, found.what) == (Kind.PROBE, "no replica of Serve there yet")


def test_another_failing_probe_is_repeated():
    said = (
        'Readiness probe failed: command "bash -c wget -T 2 -q -O- '
        'http://localhost:52365/api/local_raylet_healthz | grep success" timed out'
    )
    found = cause_of([event("Unhealthy", said, "p")], status={"conditions": [ready(False)]})
    assert (found.kind, found.evidence) == (Kind.PROBE, f"Unhealthy: {said}")


def test_a_pod_that_is_told_to_go_drains_until_its_end():
    metadata = {"deletionTimestamp": "2026-11-22T12:11:30Z"}
    found = cause_of(metadata=metadata)
    assert (found.kind, found.since.isoformat()) == (Kind.DRAIN, "2026-11-22T12:11:30+00:00")
    assert pods.phase(pod("p", metadata=metadata)) == "Terminating"


def test_a_gate_of_the_scheduler_names_who_might_hold_it():
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    found = cause_of(status={"phase": "Pending", "conditions": [gated]})
    assert (found.kind, found.what) == (Kind.UNSCHEDULABLE, "a scheduling gate")


@pytest.mark.parametrize(
    ("spec", "device"),
    [
        (mig_limits(), "1g.18gb"),
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}, "2 gpu"),
        ({"containers": [{"name": "ray"}]}, ""),
        (
            {
                "containers": [{"name": "ray"}],
                "resourceClaims": [{"name": "device", "resourceClaimTemplateName": "demo-mig"}],
            },
            "claim demo-mig",
        ),
    ],
)
def test_its_device_is_what_it_asks_for(spec, device):
    assert pods.device(pod("p", spec=spec)) == device
