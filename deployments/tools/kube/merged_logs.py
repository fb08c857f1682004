"""The logs of several pods as one, each line behind its pod's name.

What is there already is put in order by the time that the kubelet wrote before each line; what is
followed comes as it comes, a thread a pod. A pod whose log cannot be had costs one line on the
other stream and nobody else's.
"""

from __future__ import annotations

import heapq
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from deployments.tools.kube.types import Object, name_of

_CONTAINER = 0  # KubeRay takes the first one for Ray's
_WAITING = 10_000  # lines that may lie between the threads and the printer

Say = Callable[[str], object]
Stamped = tuple[str, str, str]  # time, pod, text


@dataclass(frozen=True, slots=True)
class LogOptions:
    """since_s: only lines of the last seconds. tail: only so many of a pod's last lines."""

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


def merged(logs: Logs, pods: Sequence[Object], options: LogOptions, say: Say, warn: Say) -> int:
    """Prints all lines; how many pods' logs could not be had."""
    failed: list[str] = []
    streams = [_stamped(logs, pod, options, failed) for pod in pods]
    lines = _as_they_come(streams) if options.follow else heapq.merge(*streams)
    for _, pod, text in lines:
        say(f"{pod} | {text}")
    for each in failed:
        warn(each)
    return len(failed)


def _stamped(logs: Logs, pod: Object, options: LogOptions, failed: list[str]) -> Iterator[Stamped]:
    from deployments.tools.kube.api import KubernetesError

    name, container = name_of(pod), pod["spec"]["containers"][_CONTAINER]["name"]
    try:
        for line in logs.log(name, container, **options.of_api()):
            time, _, text = line.decode(errors="replace").partition(" ")
            yield time, name, text
    except KubernetesError as error:
        failed.append(f"{name}: {error}")


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
