"""Prints the logs of several pods' containers as one.

Each line begins with its pod's name; for containers other than the pod's first one, also with the
container's name: `mig-0 | …`, `prewarm-0/artifacts | …`. Lines that exist already are sorted by the
timestamp that the kubelet put before each. Logs that are followed are printed as they arrive, with
one thread for each container. A log that cannot be read costs one warning; the others are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from deployments.tools.kube import containers
from deployments.tools.kube.types import Object, name_of
from deployments.tools.logs import Stamped, interleaved

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which lines to print."""

    since_s: int | None = None  # only lines of the last so many seconds
    tail: int | None = None  # only so many last lines of each container
    follow: bool = False  # print further lines as they are written
    previous: bool = False  # of the containers that ended before the present ones

    def of_api(self) -> dict[str, Any]:
        """The options that were given, under the names of `read_namespaced_pod_log`."""
        named = {
            "since_seconds": self.since_s,
            "tail_lines": self.tail,
            "follow": self.follow or None,
            "previous": self.previous or None,
        }
        return {name: value for name, value in named.items() if value is not None}


class Logs(Protocol):
    def log(self, pod: str, container: str, **options: Any) -> Iterator[bytes]: ...


def merged(logs: Logs, pods: Sequence[Object], options: LogOptions, say: Say, warn: Say) -> bool:
    """Prints lines with `say` and failures with `warn`. Returns whether any log could be read."""
    failed: list[str] = []

    def fail(message: str) -> None:
        failed.append(message)
        warn(message)

    streams = [
        _stamped(logs, pod, container, options, fail)
        for pod in pods
        for container in containers.with_logs(pod, previous=options.previous)
    ]
    for _, source, text in interleaved(streams, follow=options.follow):
        say(f"{source} | {text}")
    return len(failed) < len(streams)


def _stamped(
    logs: Logs, pod: Object, container: str, options: LogOptions, warn: Say
) -> Iterator[Stamped]:
    from deployments.tools.kube.api import KubernetesError

    name = name_of(pod)
    source = name if container == containers.first(pod) else f"{name}/{container}"
    try:
        for line in logs.log(name, container, **options.of_api()):
            time, _, text = line.decode(errors="replace").partition(" ")
            yield time, source, text
    except KubernetesError as error:
        warn(f"{source}: {error}")
