"""Pods of a Ray cluster on machines of a `Lab`: what a kubelet makes of each, as far as it goes.

A pod has its own network, processes and files (`pod_mounts`); its container runs as the user, with
the groups and without the capabilities that its security context says. Not done: limits of
processor and memory, the seccomp profile, restarts, and probes that nobody asks for.
Source: Kubernetes' pod lifecycle, environment variables, security context; setpriv(1).
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tests.cluster.machines import CHECKOUT, CannotMakeMachines, Lab, Machine
from tests.cluster.pod_mounts import OWN, files_folder, publish, script
from tests.cluster.ray_nodes import PATIENCE, Node
from tests.kube.chart import Object

# What the image would say, and what every container of a cluster is told.
_IMAGE = {
    "PATH": f"{Path(sys.prefix)}/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH": str(CHECKOUT),
    "LANG": "C.UTF-8",
}
_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
_LOG = OWN / "container.log"
INIT_S = 120.0
_ENDS_S = 30.0
_LABEL = re.compile(r"metadata\.labels\['(.+)'\]")


@dataclass(frozen=True)
class Stored:
    """What pods name: texts by key, by the object's name."""

    secrets: Mapping[str, Mapping[str, str]]
    config_maps: Mapping[str, Mapping[str, str]]

    def files(self, volume: Object) -> dict[str, str]:
        """Of a projected volume; later sources win."""
        found: dict[str, str] = {}
        for source in volume["projected"]["sources"]:
            ((kind, of),) = source.items()
            stored = self.secrets if kind == "secret" else self.config_maps
            if of["name"] in stored or not of.get("optional"):
                found |= stored[of["name"]]
        return found


def environment(
    pod: Object, container: Object, stored: Stored, image: Mapping[str, str] = _IMAGE
) -> dict[str, str]:
    """Of one of its containers. Raises KeyError where it names what is not there."""
    found = {**image, **_CLUSTER, "HOSTNAME": pod["metadata"]["name"]}
    for each in container.get("env", ()):
        value = _from(pod, each["valueFrom"], stored) if "valueFrom" in each else each["value"]
        found[each["name"]] = expanded(value, found)
    return found


def expanded(text: str, known: Mapping[str, str]) -> str:
    """With $(NAME) of variables that came before, and $$( for $(."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else known.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)", value, text)


def _from(pod: Object, source: Object, stored: Stored) -> str:
    if "secretKeyRef" in source:
        of = source["secretKeyRef"]
        return stored.secrets[of["name"]][of["key"]]
    path = source["fieldRef"]["fieldPath"]
    if label := _LABEL.fullmatch(path):
        return str(pod["metadata"]["labels"][label[1]])
    return str(pod["metadata"][path.removeprefix("metadata.")])


def command_of(container: Object) -> list[str]:
    """Its program and all its arguments."""
    return [*container["command"], *container["args"]]


def as_user(pod: Object, container: Object) -> list[str]:
    """What runs a command with the container's security context."""
    security = pod["spec"].get("securityContext", {}) | container.get("securityContext", {})
    words = ["setpriv", f"--reuid={security['runAsUser']}", f"--regid={security['runAsGroup']}"]
    words.append(f"--groups={security['fsGroup']}")
    if "ALL" in security.get("capabilities", {}).get("drop", ()):
        words += ["--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all"]
    if security.get("allowPrivilegeEscalation") is False:
        words.append("--no-new-privs")
    return [*words, "--"]


def check_user(user: int, uid_map: str) -> None:
    """Raises CannotMakeMachines where a process with that `/proc/self/uid_map` cannot become it."""
    rows = [[int(word) for word in line.split()] for line in uid_map.splitlines()]
    if not any(first <= user < first + count for first, _, count in rows):
        raise CannotMakeMachines(f"only root of this machine may become the pods' user {user}")


class PodNode(Node):
    """A pod whose first container runs Ray. `names`: addresses of the cluster's Services by name,
    as its DNS would tell them."""

    def __init__(
        self, lab: Lab, pod: Object, stored: Stored, names: Mapping[str, str], program: str
    ) -> None:
        """`program`: what stands in HAProxy's place."""
        self.pod, self._stored, self._program = pod, stored, Path(program)
        self.container = pod["spec"]["containers"][0]
        user = pod["spec"]["securityContext"]["runAsUser"]
        check_user(user, Path("/proc/self/uid_map").read_text())
        machine = lab.machine(pod["metadata"]["name"])
        machine.run("ip", "route", "add", "default", "via", machine.address.nobody.ip)
        self._furnish(machine, {"localhost": "127.0.0.1", machine.name: machine.ip, **names})
        super().__init__(machine, environment(pod, self.container, stored))

    def _furnish(self, machine: Machine, hosts: Mapping[str, str]) -> None:
        """Its files and its volumes."""
        machine.run("sh", "-c", script(self.pod, self._program, hosts))

    def start(self) -> None:
        """Its init containers, then Ray's. The others of the pod are left out."""
        self._began = time.monotonic()
        self.publish(self._stored)
        for each in self.pod["spec"].get("initContainers", ()):
            self._run_to_its_end(each)
        with self._log_file.open("a") as log:
            self.process = self._started(self.container, log)

    def _run_to_its_end(self, container: Object) -> None:
        """Raises CalledProcessError."""
        self._run(container, command_of(container), INIT_S * PATIENCE)

    def _started(self, container: Object, log: TextIO) -> subprocess.Popen[str]:
        words = [*as_user(self.pod, container), *command_of(container)]
        return self.machine.start(
            *words, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    @property
    def age_s(self) -> float:
        """Since its first container was started."""
        return time.monotonic() - self._began

    def publish(self, stored: Stored) -> None:
        """Secrets and ConfigMaps have changed, and the kubelet has noticed."""
        self._stored = stored
        for volume in self.pod["spec"].get("volumes", ()):
            if "projected" in volume:
                publish(self._folder(volume["name"]), stored.files(volume))

    def _folder(self, volume: str) -> Path:
        """Where its files are, as seen from here."""
        return self._here(files_folder(volume))

    def run(self, *command: str, limit_s: float = 30) -> subprocess.CompletedProcess[str]:
        """In its container, as `kubectl exec`. Raises CalledProcessError."""
        return self._run(self.container, command, limit_s * PATIENCE)

    def _run(
        self, container: Object, command: Sequence[str], limit_s: float
    ) -> subprocess.CompletedProcess[str]:
        env = environment(self.pod, container, self._stored)
        words = [*as_user(self.pod, container), *command]
        return self.machine.run(*words, env=env, limit_s=limit_s)

    def passes(self, probe: str) -> bool:
        """`probe`: livenessProbe or readinessProbe; asked once, with its own limit of time."""
        asked: dict[str, Any] = self.container[probe]
        if "exec" in asked:
            command = asked["exec"]["command"]
        else:
            url = f"http://{self.ip}:{asked['httpGet']['port']}/{asked['httpGet']['path']}"
            command = ["wget", "--tries", "1", "-q", "-O-", url]
        try:
            self._run(self.container, command, asked["timeoutSeconds"])
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return False
        return True

    def kill(self) -> None:
        """Every process of its container at once, as for want of memory."""
        self.machine.kill()
        self.process.wait(_ENDS_S)

    @property
    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.pod["metadata"]["labels"]
        return found

    @property
    def _log_file(self) -> Path:
        return self._here(_LOG)

    @property
    def log(self) -> str:
        """What its container has said."""
        return self._log_file.read_text()

    @property
    def ports(self) -> dict[str, int]:
        """That its container declares, by name."""
        return {each["name"]: each["containerPort"] for each in self.container["ports"]}

    def _here(self, path: Path) -> Path:
        return self.machine.root / path.relative_to("/")
