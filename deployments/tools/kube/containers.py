"""What a pod's containers wait for, from their states and from the kubelet's events, and which of
them have logs.

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
# Of a registry's answer, as containerd repeats it.
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
        "a registry of your own: this one refuses so many pulls",
    ),
    (
        ("no such host", "i/o timeout", "connection refused", "x509"),
        "the node cannot reach or trust the registry: its network, proxy or certificates",
    ),
)


def first(pod: Object) -> str:
    """KubeRay takes it for Ray's."""
    return str(pod["spec"]["containers"][0]["name"])


def with_logs(pod: Object, *, previous: bool = False) -> list[str]:
    """Containers that have printed, or may have: those that run or have ended, and init containers,
    before the others, while the pod's first one does not run. Where there is none, the first: asked
    for its log, the kubelet says what it waits for. `previous`: those that ended before."""
    status = pod.get("status", {})
    init, others = status.get("initContainerStatuses") or (), status.get("containerStatuses") or ()
    runs = any(each["name"] == first(pod) and "running" in each["state"] for each in others)
    asked = others if runs else (*init, *others)
    return [each["name"] for each in asked if _has_log(each, previous)] or [first(pod)]


def _has_log(status: Any, previous: bool) -> bool:
    if "terminated" in (status.get("lastState") or {}):
        return True
    return not previous and bool({"running", "terminated"} & status["state"].keys())


def cause(pod: Object, told: Sequence[Object]) -> Cause | None:
    """None where its containers run and no probe complains. `told`: events."""
    status = pod.get("status", {})
    for each in status.get("initContainerStatuses") or ():
        found = _of_init(pod, each, told)
        if found is not None:
            return found
    for each in status.get("containerStatuses") or ():
        found = _of_state(pod, each, told)
        if found is not None:
            return found
    return None


def not_ready(pod: Object, told: Sequence[Object]) -> Cause:
    """Of a pod whose containers run and which is not ready."""
    event = events.newest(told, "Pod", name_of(pod), {"Unhealthy"})
    said = "" if event is None else str(event.get("message", "")).strip()
    since = None if event is None else events.when(event)
    if said == "Readiness probe failed: success":
        # KubeRay asks the raylet, then Serve's proxy; the first one said success.
        return Cause(
            Kind.PROBE, "no replica of Serve there yet", f"Unhealthy: {said}",
            "nothing: Ray runs, and the pod becomes ready with its first replica", since,
        )  # fmt: skip
    return Cause(
        Kind.PROBE, "its readiness probe", f"Unhealthy: {said}" if said else "the pod is not ready",
        "the image's bash, wget and grep; no http_proxy in env; the pod's logs", since,
    )  # fmt: skip


def _of_init(pod: Object, status: Any, told: Sequence[Object]) -> Cause | None:
    if status["state"].get("terminated", {}).get("exitCode") == 0:
        return None
    found = _of_state(pod, status, told)
    if found is not None:
        return found
    name = status["name"]
    running = status["state"].get("running")
    if running is None:
        return None
    if name == _WAITS_FOR_HEAD:
        mend = "the head's own row; else networkPolicy, or Ray versions that differ"
        what = "the head (GCS)"
    else:
        what, mend = f"init container {name}", f"kubectl logs {name_of(pod)} -c {name}"
    evidence = f"init container {name} is running"
    return Cause(Kind.INIT, what, evidence, mend, time_of(running.get("startedAt")))


def _of_state(pod: Object, status: Any, told: Sequence[Object]) -> Cause | None:
    waiting = status["state"].get("waiting")
    last = status.get("lastState", {}).get("terminated")
    if waiting is None:
        ended = status["state"].get("terminated")
        return _crash(pod, status["name"], ended, "") if ended else None
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _IMAGE:
        return _image(pod, status, reason, message, told)
    if reason in _CONFIG:
        mend = "the Secret, ConfigMap or program that it names: env, envFrom, tenantFiles, image"
        return Cause(Kind.CONFIG, message or reason, f"{reason}: {message}", mend)
    if reason == "CrashLoopBackOff" or last is not None:
        return _crash(pod, status["name"], last or {}, f"{reason}: {message}")
    return _starting(pod, reason, told) if reason in _NOT_STARTED else None


def _image(pod: Object, status: Any, reason: str, message: str, told: Sequence[Object]) -> Cause:
    """The registry's answer; before Kubernetes 1.31 `ImagePullBackOff` left it to an event."""
    since = None
    pulls = [each for each in told if "Failed to pull image" in each.get("message", "")]
    event = events.newest(pulls, "Pod", name_of(pod), {"Failed"})
    if event is not None:
        since = events.when(event)
        message = message if ": ErrImagePull: " in message else str(event["message"])
    fits = (mend for words, mend in _PULL_MENDS if any(word in message for word in words))
    mend = next(fits, "image.repository, image.tag and image.pullSecrets")
    return Cause(Kind.IMAGE, str(status.get("image", "")), f"{reason}: {message}", mend, since)


def _crash(pod: Object, container: str, ended: Any, waiting: str) -> Cause:
    """`ended`: how it ended last."""
    code, reason = ended.get("exitCode"), ended.get("reason", "")
    since = time_of(ended.get("finishedAt"))
    parts = [waiting, f"last ended with {reason or 'no reason'}, exit code {code}"]
    if ended.get("message"):
        parts.append(str(ended["message"]).strip())
    evidence = "; ".join(part for part in parts if part)
    if reason == "OOMKilled":
        limit = _limit(pod, container)
        mend = "a larger memory of the group; objectStore, and so /dev/shm, counts in it"
        return Cause(Kind.CRASH, f"OOMKilled at {limit}", evidence, mend, since)
    mend = f"headrace cluster logs {name_of(pod)}"
    if container != first(pod):
        mend = f"kubectl logs {name_of(pod)} -c {container}"
    if waiting:  # to be started again
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


def _starting(pod: Object, reason: str, told: Sequence[Object]) -> Cause | None:
    """A container that is being made: what the kubelet says it lacks, or that it is on its way."""
    volume = events.newest(told, "Pod", name_of(pod), _MOUNT)
    if volume is not None:
        said = str(volume.get("message", "")).strip()
        mend = (
            "what the sentence names: a Secret of tenantFiles, a claim of storage, a node's folder"
        )
        return Cause(Kind.VOLUME, said, events.text(volume), mend, events.when(volume))
    sandbox = events.newest(told, "Pod", name_of(pod), _SANDBOX)
    if sandbox is not None:
        kind = Kind.DEVICE if "DynamicResources" in str(sandbox["reason"]) else Kind.START
        mend = "the node's own logs: its network plugin, or the driver of its devices"
        return Cause(kind, str(sandbox["reason"]), events.text(sandbox), mend, events.when(sandbox))
    what = "its image, volumes and network"
    return Cause(
        Kind.START, what, reason, "time; prewarm.enabled pulls images before", _started(pod)
    )


def _started(pod: Object) -> datetime | None:
    return time_of(pod.get("status", {}).get("startTime"))
