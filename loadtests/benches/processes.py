"""Finds the processes of a server under test, and reads what each is for and what it has used.

A launched server has a mark in its environment, which all its descendants inherit, also those that
leave the process tree (Ray's workers, HAProxy). CPU time is user plus system seconds since a
process began. Memory is resident bytes and, on request, the proportional set size, which counts
shared pages once. A process's role follows from its title, which Ray and HAProxy set.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "HEADRACE_BENCH_MARK"

ROLES = tuple(
    (role, re.compile(pattern, re.IGNORECASE))
    for role, pattern in (
        ("haproxy", r"^\S*/?haproxy\b.*haproxy\.cfg|^haproxy\b"),
        ("gateway replica", r"ServeReplica:gateway:"),
        ("model replica", r"ServeReplica:[^:]+:(model|device)\b"),
        ("anchor", r"ServeReplica:[^:]+:anchor\b"),
        ("ingress replica", r"ServeReplica:[^:]+:ingress\b"),
        ("controller", r"ServeController"),
        ("haproxy manager", r"HAProxyManager"),
        ("proxy", r"ProxyActor"),
        ("registry", r"RegistryActor"),
        ("autoscaler", r"ray::AutoscalerActor"),
        ("idle worker", r"ray::IDLE"),
        ("gcs", r"gcs_server"),
        ("dashboard", r"dashboard|RuntimeEnvAgent"),
        ("raylet", r"raylet/raylet"),
        ("ray's monitors", r"log_monitor|autoscaler/_private/monitor|multiprocessing\."),
        ("triton", r"bin/tritonserver"),
        ("triton model", r"triton_python_backend_stub"),
        ("host", r"host_process|app\.py|bind\.py"),
        ("command line", r"bin/headrace|deployments\.cli"),
    )
)


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that one process has used, at one moment."""

    pid: int
    role: str
    cpu_s: float
    rss_bytes: int
    pss_bytes: int


def role_of(command_line: str) -> str:
    for role, pattern in ROLES:
        if pattern.search(command_line):
            return role
    return "other"


def marked(mark: str) -> list[psutil.Process]:
    """Every live process with the mark but this one; reads `/proc/PID/environ`."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for process in psutil.process_iter():
        try:
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
            if wanted in environ.split(b"\0") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (OSError, psutil.Error):
            continue
    return [process for process in found if process.pid != os.getpid()]


def usage(processes: Iterable[psutil.Process], *, memory: bool = False) -> list[Usage]:
    """`memory`: also reads the proportional set size, which takes some ms for each process."""
    seen = []
    for process in processes:
        try:
            times = process.cpu_times()
            title = " ".join(process.cmdline()) or process.name()
            rss = process.memory_info().rss
            pss = process.memory_full_info().pss if memory else 0
        except (psutil.Error, OSError):
            continue
        seen.append(Usage(process.pid, role_of(title), times.user + times.system, rss, pss))
    return seen


def cpu_between(before: Iterable[Usage], after: Iterable[Usage]) -> dict[str, float]:
    """CPU seconds by role. A process that ended in between is not counted, a new one completely."""
    earlier = {each.pid: each.cpu_s for each in before}
    spent: dict[str, float] = defaultdict(float)
    for each in after:
        spent[each.role] += each.cpu_s - earlier.get(each.pid, 0.0)
    return dict(spent)


def memory_by_role(usages: Iterable[Usage]) -> Mapping[str, tuple[int, int, int]]:
    """By role: the number of processes, their resident bytes, their proportional bytes."""
    total: dict[str, tuple[int, int, int]] = {}
    for each in usages:
        count, rss, pss = total.get(each.role, (0, 0, 0))
        total[each.role] = (count + 1, rss + each.rss_bytes, pss + each.pss_bytes)
    return total
