"""Pods of a Ray cluster as containers of a real image, on machines of a `Lab`.

What a kubelet makes of a pod, by podman: the image's own files, read-only where the pod says so;
its user, capabilities and seccomp profile; its limits of processor and memory; volumes. Network
and processes are the machine's. Not done: restarts, and a volume that two containers of a pod
share. Source: podman-run(1), Kubernetes' pod lifecycle, volumes, security context.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from deployments.tools.images import REVISION, ROOT
from tests.cluster.machines import CannotMakeMachines, Machine
from tests.cluster.pod_mounts import UnknownVolume
from tests.cluster.pod_nodes import INIT_S, PodNode, as_user, command_of, environment
from tests.cluster.ray_nodes import PATIENCE
from tests.kube.chart import Object
from tests.kube.operator_pods import quantity

_PROCESSES = 32_768
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UNLIMITED = "4Gi"
_SHM = "/dev/shm"


def has_image(name: str) -> None:
    """Raises CannotMakeMachines where podman or that image is not there, or is of another commit
    since which something changed that it is made of."""
    if shutil.which("podman") is None:
        raise CannotMakeMachines("podman is not installed")
    if subprocess.run(["podman", "image", "exists", name], check=False).returncode:
        raise CannotMakeMachines(f"there is no image {name}: `make images` builds it")
    shown = subprocess.run(["podman", "image", "inspect", name], check=True, capture_output=True)
    revision = (json.loads(shown.stdout)[0].get("Labels") or {}).get(REVISION)
    sent = [each[1:] for each in (ROOT / ".dockerignore").read_text().split() if each[0] == "!"]
    words = ["git", "-C", str(ROOT), "diff", "--quiet", str(revision), "HEAD", "--", "Dockerfile"]
    if revision is None or subprocess.run([*words, *sent], check=False).returncode:
        raise CannotMakeMachines(f"image {name} is of commit {revision}: `make images` builds it")


def ulimits() -> list[str]:
    """Options of podman: nobody may have more files than this machine allows."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return [f"--ulimit=nofile={files}:{files}", f"--ulimit=nproc={_PROCESSES}:{_PROCESSES}"]


class ContainerNode(PodNode):
    """A pod whose first container runs Ray."""

    _hosts: Mapping[str, str]
    _files: Path

    def _furnish(self, machine: Machine, hosts: Mapping[str, str]) -> None:
        self._hosts = hosts
        self._kept = tempfile.TemporaryDirectory(prefix="headrace-pod-")
        self._files = Path(self._kept.name)
        self._files.chmod(0o755)

    @property
    def id(self) -> str:
        """Of its container."""
        return f"headrace-{self.machine.address.ip.replace('.', '-')}-{self.name}"

    def _run_to_its_end(self, container: Object) -> None:
        words = self._podman(container, f"{self.id}-init")
        subprocess.run(words, check=True, timeout=INIT_S * PATIENCE)

    def _started(self, container: Object, log: TextIO) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._podman(container, self.id),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True, start_new_session=True,
        )  # fmt: skip

    def _podman(self, container: Object, name: str) -> list[str]:
        pid = self.machine.pid
        words = [
            "podman", "--runtime=runc", "--cgroup-manager=cgroupfs", "run", "--rm", "--pull=never",
            f"--name={name}", f"--network=ns:/proc/{pid}/ns/net", f"--pid=ns:/proc/{pid}/ns/pid",
            f"--hostname={self.name}", "--no-healthcheck", "--image-volume=ignore",
        ]  # fmt: skip
        words += ulimits()
        words += [f"--add-host={host}:{ip}" for host, ip in self._hosts.items()]
        empty = self._files / "resolv.conf"  # nobody answers for names but /etc/hosts
        empty.touch()
        words += ["--dns=none", f"--volume={empty}:/etc/resolv.conf:ro"]
        words += self._secured(container)
        words += self._volumes_of(container)
        env = environment(self.pod, container, self._stored, image={})
        words += [f"--env={key}={value}" for key, value in env.items()]
        entry, *rest = command_of(container)
        return [*words, f"--entrypoint={entry}", container["image"], *rest]

    def _secured(self, container: Object) -> list[str]:
        pod = self.pod["spec"].get("securityContext", {})
        security = pod | container.get("securityContext", {})
        words = [f"--user={security['runAsUser']}:{security['runAsGroup']}"]
        words.append(f"--group-add={security['fsGroup']}")
        words += [f"--cap-drop={each}" for each in security["capabilities"]["drop"]]
        if security.get("allowPrivilegeEscalation") is False:
            words.append("--security-opt=no-new-privileges")
        if security.get("readOnlyRootFilesystem"):
            words += ["--read-only", "--read-only-tmpfs=false"]
        limits = container.get("resources", {}).get("limits", {})
        if memory := limits.get("memory"):
            words += [f"--memory={int(quantity(memory))}b"]
        if cpu := limits.get("cpu"):
            words.append(f"--cpus={float(quantity(cpu))}")
        # Kubernetes confines a container only where its pod says so.
        profile = security.get("seccompProfile", {}).get("type", "Unconfined")
        if profile == "Unconfined":
            words.append("--security-opt=seccomp=unconfined")
        elif profile != "RuntimeDefault":
            raise ValueError(f"seccomp profile {profile} is not repeated here")
        return words

    def _volumes_of(self, container: Object) -> list[str]:
        volumes = {each["name"]: each for each in self.pod["spec"].get("volumes", ())}
        words = []
        for mount in container.get("volumeMounts", ()):
            volume, path = volumes[mount["name"]], mount["mountPath"]
            if "emptyDir" in volume:
                size = int(quantity(volume["emptyDir"].get("sizeLimit", _UNLIMITED)))
                words.append(f"--tmpfs={path}:rw,size={size},mode=2777")
                words += [f"--shm-size={size}b"] if path == _SHM else []
            elif "projected" in volume:
                words.append(f"--volume={self._folder(volume['name'])}:{path}:ro")
            else:
                raise UnknownVolume(f"volume {volume['name']} is not repeated here")
        return words

    def _folder(self, volume: str) -> Path:
        found = self._files / "volumes" / volume
        found.mkdir(parents=True, exist_ok=True)
        return found

    def _run(
        self, container: Object, command: Sequence[str], limit_s: float
    ) -> subprocess.CompletedProcess[str]:
        """In its first container; `podman exec` alone takes a second on a busy machine."""
        own = ["--mount", "--uts", "--ipc", "--net", "--pid", "--root"]
        words = [
            "nsenter",
            f"--target={self._pid}",
            *own,
            "--",
            *as_user(self.pod, container),
            *command,
        ]
        env = environment(self.pod, container, self._stored, image={"PATH": _PATH})
        return subprocess.run(
            words, check=True, capture_output=True, text=True, timeout=limit_s, env=env
        )

    @property
    def _pid(self) -> int:
        """Of its container's first process, as this machine numbers it."""
        asked = ["podman", "inspect", "--format={{.State.Pid}}", self.id]
        return int(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)

    def kill(self) -> None:
        words = ["podman", "kill", "--signal=KILL", self.id]
        subprocess.run(words, check=False, capture_output=True)
        super().kill()

    @property
    def _log_file(self) -> Path:
        return self._files / "log"
