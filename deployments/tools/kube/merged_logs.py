"""The logs of several pods' containers as one, each line behind its pod's name, and behind its
container's where that is not the pod's first one: `mig-0 | …`, `prewarm-0/artifacts | …`.

What is there already is put in order by the time that the kubelet wrote before each line; what is
followed comes as it comes, a thread a container. A log that cannot be had costs one line on the
other stream, when it happens, and nobody else's.
"""

from __future__ import annotations

import heapq
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from deployments.tools.kube import containers
from deployments.tools.kube.types import Object, name_of

_WAITING = 10_000  # lines that may lie between the threads and the printer

Say = Callable[[str], object]
Stamped = tuple[str, str, str]  # time, whose it is, text


@dataclass(frozen=True, slots=True)
class LogOptions:
    """since_s: only lines of the last seconds. tail: only so many of a container's last lines."""

    since_s: int | None = None
    tail: int | None = None
    follow: bool = False
    previous: bool = False

    def of_api(self) -> dict[str, Any]:
        """As the API's client takes them: only those that were given."""
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
    """Prints all lines; whether at least one log could be had."""
    failed: list[str] = []

    def told(said: str) -> None:
        failed.append(said)
        warn(said)

    streams = [
        _stamped(logs, pod, container, options, told)
        for pod in pods
        for container in containers.with_logs(pod, previous=options.previous)
    ]
    lines = _as_they_come(streams) if options.follow else heapq.merge(*streams)
    for _, whose, text in lines:
        say(f"{whose} | {text}")
    return len(failed) < len(streams)


def _stamped(
    logs: Logs, pod: Object, container: str, options: LogOptions, warn: Say
) -> Iterator[Stamped]:
    from deployments.tools.kube.api import KubernetesError

    name = name_of(pod)
    whose = name if container == containers.first(pod) else f"{name}/{container}"
    try:
        for line in logs.log(name, container, **options.of_api()):
            time, _, text = line.decode(errors="replace").partition(" ")
            yield time, whose, text
    except KubernetesError as error:
        warn(f"{whose}: {error}")


def _as_they_come(streams: Sequence[Iterator[Stamped]]) -> Iterator[Stamped]:
    """Until every stream has ended, or its reader stops."""
    waiting: queue.Queue[Stamped | Exception | None] = queue.Queue(_WAITING)

    def read(stream: Iterator[Stamped]) -> None:
        try:
            for each in stream:
                waiting.put(each)
            waiting.put(None)
        except Exception as error:
            waiting.put(error)

    for stream in streams:
        threading.Thread(target=read, args=(stream,), daemon=True).start()
    open_streams = len(streams)
    while open_streams:
        each = waiting.get()
        if isinstance(each, Exception):
            raise each
        if each is None:
            open_streams -= 1
        else:
            yield each
