"""Why does a pod's container not run, and which containers have logs?

The answers come from the containers' states and from the kubelet's events.
Sources: kubelet `images/types.go` (ErrImagePull, ImagePullBackOff, InvalidImageName,
ErrImageNeverPull), `container/sync_result.go` (CrashLoopBackOff, CreateContainerConfigError),
`events/event.go` (FailedMount, FailedAttachVolume, FailedCreatePodSandBox, Unhealthy); KubeRay
`controllers/ray/common/pod.go` (`wait-gcs-ready`, the readiness probe).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from deployments.tools.kube import events
from deployments.tools.kube.types import Cause, Kind, Object, name_of, time_of

_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
_NOT_STARTED = {"ContainerCreating", "PodInitializing"}
_MOUNT = {"FailedMount", "FailedAttachVolume", "FailedMapVolume"}
_SANDBOX = {"FailedCreatePodSandBox", "FailedPrepareDynamicResources"}
_WAITS_FOR_HEAD = "wait-gcs-ready"
# What to do, by words of the image registry's answer as containerd repeats it.
_PULL_MENDS = (
    (
        ("not found", "manifest unknown"),
        "image.repository and image.tag (or digest): that image is not there",
    ),
    (
        ("unauthorized", "denied", "403 Forbidden", "401 Unauthorized"),
        "image.pullSecrets: a Secret with the registry's login",
    ),
    (
        ("toomanyrequests", "429 Too Many Requests"),
        "a registry of your own: this one limits the number of pulls",
    ),
    (
        ("no such host", "i/o timeout", "connection refused", "x509"),
        "the node cannot reach or trust the registry: its network, proxy or certificates",
    ),
)


def first(pod: Object) -> str:
    """Name of the pod's first container, which KubeRay takes for the one that runs Ray."""
    return str(pod["spec"]["containers"][0]["name"])


def with_logs(pod: Object, *, previous: bool = False) -> list[str]:
    """Names of the containers that may have a log.

    These are the containers that run or have ended. While the pod's first container does not run,
    init containers come before them. If there are none, the result is the first container: the
    kubelet's refusal to send its log says why it waits. `previous`: only containers that were
    started again and so have an earlier log.
    """
    status = pod.get("status", {})
    init, others = status.get("initContainerStatuses") or (), status.get("containerStatuses") or ()
    runs = any(each["name"] == first(pod) and "running" in each["state"] for each in others)
    asked = others if runs else (*init, *others)
    return [each["name"] for each in asked if _has_log(each, previous)] or [first(pod)]


def _has_log(status: Any, previous: bool) -> bool:
    if "terminated" in (status.get("lastState") or {}):
        return True
    return not previous and bool({"running", "terminated"} & status["state"].keys())


def cause(pod: Object, pod_events: Sequence[Object]) -> Cause | None:
    """Why a container of the pod does not run; None if none has a reason not to."""
    status = pod.get("status", {})
    for each in status.get("initContainerStatuses") or ():
        found = _of_init(pod, each, pod_events)
        if found is not None:
            return found
    for each in status.get("containerStatuses") or ():
        found = _of_state(pod, each, pod_events)
        if found is not None:
            return found
    return None


def not_ready(pod: Object, pod_events: Sequence[Object]) -> Cause:
    """Why a pod whose containers run is not ready."""
    event = events.newest(pod_events, "Pod", name_of(pod), {"Unhealthy"})
    said = "" if event is None else str(event.get("message", "")).strip()
    since = None if event is None else events.when(event)
    if said == "Readiness probe failed: success":
        # KubeRay's probe asks the raylet, which answers "success", and then Serve's proxy.
        return Cause(
            Kind.PROBE, "no replica of Serve there yet", f"Unhealthy: {said}",
            "nothing to do: Ray runs, and the pod becomes ready with its first replica", since,
        )  # fmt: skip
    return Cause(
        Kind.PROBE, "its readiness probe", f"Unhealthy: {said}" if said else "the pod is not ready",
        "check that the image has bash, wget and grep and env has no http_proxy; read the pod's "
        "logs", since,
    )  # fmt: skip


def _of_init(pod: Object, status: Any, pod_events: Sequence[Object]) -> Cause | None:
    if status["state"].get("terminated", {}).get("exitCode") == 0:
        return None
    found = _of_state(pod, status, pod_events)
    if found is not None:
        return found
    name = status["name"]
    running = status["state"].get("running")
    if running is None:
        return None
    if name == _WAITS_FOR_HEAD:
        mend = "see the head's own row; if the head runs: networkPolicy, or different Ray versions"
        what = "the head (GCS)"
    else:
        what, mend = f"init container {name}", f"kubectl logs {name_of(pod)} -c {name}"
    evidence = f"init container {name} is running"
    return Cause(Kind.INIT, what, evidence, mend, time_of(running.get("startedAt")))


def _of_state(pod: Object, status: Any, pod_events: Sequence[Object]) -> Cause | None:
    waiting = status["state"].get("waiting")
    last = status.get("lastState", {}).get("terminated")
    if waiting is None:
        ended = status["state"].get("terminated")
        return _crash(pod, status["name"], ended, "") if ended else None
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _IMAGE:
        return _image(pod, status, reason, message, pod_events)
    if reason in _CONFIG:
        mend = (
            "create the Secret, ConfigMap or program that the message names: env, envFrom, "
            "tenantFiles, image"
        )
        return Cause(Kind.CONFIG, message or reason, f"{reason}: {message}", mend)
    if reason == "CrashLoopBackOff" or last is not None:
        return _crash(pod, status["name"], last or {}, f"{reason}: {message}")
    return _starting(pod, reason, pod_events) if reason in _NOT_STARTED else None


def _image(
    pod: Object, status: Any, reason: str, message: str, pod_events: Sequence[Object]
) -> Cause:
    """Why the image cannot be pulled: the registry's answer.

    Before Kubernetes 1.31 the message of `ImagePullBackOff` lacks the answer, but an event has it.
    """
    since = None
    pulls = [each for each in pod_events if "Failed to pull image" in each.get("message", "")]
    event = events.newest(pulls, "Pod", name_of(pod), {"Failed"})
    if event is not None:
        since = events.when(event)
        message = message if ": ErrImagePull: " in message else str(event["message"])
    fits = (mend for words, mend in _PULL_MENDS if any(word in message for word in words))
    mend = next(fits, "image.repository, image.tag and image.pullSecrets")
    return Cause(Kind.IMAGE, str(status.get("image", "")), f"{reason}: {message}", mend, since)


def _crash(pod: Object, container: str, ended: Any, waiting: str) -> Cause:
    """A container that ended. `ended`: its last `terminated` state; `waiting`: its present one."""
    code, reason = ended.get("exitCode"), ended.get("reason", "")
    since = time_of(ended.get("finishedAt"))
    parts = [waiting, f"last ended with {reason or 'no reason'}, exit code {code}"]
    if ended.get("message"):
        parts.append(str(ended["message"]).strip())
    evidence = "; ".join(part for part in parts if part)
    if reason == "OOMKilled":
        limit = _limit(pod, container)
        mend = "a larger memory of the group, which includes objectStore, that is /dev/shm"
        return Cause(Kind.CRASH, f"OOMKilled at {limit}", evidence, mend, since)
    mend = f"headrace kube logs {name_of(pod)}"
    if container != first(pod):
        mend = f"kubectl logs {name_of(pod)} -c {container}"
    if waiting:  # the kubelet starts it again, so this log is the previous container's
        mend += " --previous"
    return Cause(Kind.CRASH, f"{container} ended with exit code {code}", evidence, mend, since)


def _limit(pod: Object, container: str) -> str:
    for each in _containers(pod):
        if each["name"] == container:
            return str(each.get("resources", {}).get("limits", {}).get("memory", "no limit"))
    return "no limit"


def _containers(pod: Object) -> Iterator[Any]:
    yield from pod["spec"].get("initContainers") or ()
    yield from pod["spec"]["containers"]


def _starting(pod: Object, reason: str, pod_events: Sequence[Object]) -> Cause | None:
    """A container that is being created: what it lacks by the kubelet's events, if they say so."""
    volume = events.newest(pod_events, "Pod", name_of(pod), _MOUNT)
    if volume is not None:
        said = str(volume.get("message", "")).strip()
        mend = (
            "create what the message names: a Secret of tenantFiles, a claim of storage, or a "
            "node's folder"
        )
        return Cause(Kind.VOLUME, said, events.text(volume), mend, events.when(volume))
    sandbox = events.newest(pod_events, "Pod", name_of(pod), _SANDBOX)
    if sandbox is not None:
        kind = Kind.DEVICE if "DynamicResources" in str(sandbox["reason"]) else Kind.START
        mend = "read the node's own logs: its network plugin's, or its device driver's"
        return Cause(kind, str(sandbox["reason"]), events.text(sandbox), mend, events.when(sandbox))
    what = "its image, volumes and network"
    return Cause(
        Kind.START, what, reason, "wait; prewarm.enabled pulls images beforehand", _started(pod)
    )


def _started(pod: Object) -> datetime | None:
    return time_of(pod.get("status", {}).get("startTime"))
