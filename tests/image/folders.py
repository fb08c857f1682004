"""The Dockerfile's steps in plain folders, one a stage: Debian's base by debootstrap, RUN by chroot
in namespaces of its own, COPY by cp.

What differs from a real build: the base is Debian's own of today, not the tagged image, and there
are no layers. Needs root, debootstrap and a registry.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.image import context
from tests.image.dockerfile import ROOT, Stage, Step, assignments, stages

# Where Debian's pip puts programs of packages.
SCRIPTS = Path("/usr/local/bin")
_SUITES = {"debian:12": "bookworm"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What of this machine says how registries are reached.
_NETWORK = ("PIP_CERT", "PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "http_proxy", "https_proxy")
_MOUNTS = """
mount --make-rprivate / && mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc"
for file in /etc/hosts /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt; do
  if [ -s "$file" ] && [ -e "$root$file" ]; then mount --bind "$file" "$root$file"; fi
done
user=$1; shift
exec chroot "$user" "$root" "$@"
"""


class StepFailed(Exception):
    """The step, and the end of what it said."""


@dataclass(slots=True)
class Built:
    """A stage's files below `root`, and what later steps and processes get."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": _PATH})
    user: str = "0:0"
    folder: str = "/"
    labels: dict[str, str] = field(default_factory=dict)


class Builder:
    """Builds below `folder`; what was made of Debian is kept there, all else made anew."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = stages()
        self._built: dict[str, Built] = {}

    def build(self, name: str) -> Built:
        """Raises StepFailed."""
        if name not in self._built:
            self._built[name] = self._made(self._known[name])
        return self._built[name]

    def _made(self, stage: Stage) -> Built:
        root = self._folder / stage.name
        _remove(root)
        if stage.base in self._known:
            base = self.build(stage.base)
            built = Built(root, dict(base.environment), base.user, base.folder, dict(base.labels))
        else:
            base, built = Built(self._debian(stage.base)), Built(root)
        _run(["cp", "--archive", "--reflink=auto", str(base.root), str(root)])
        for step in stage.steps:
            named = f"[{stage.name}] {step.instruction} {' '.join(step.value.split())[:100]}"
            print(named, flush=True)
            try:
                self._do(step, built)
            except StepFailed as why:
                raise StepFailed(f"{named}: {why}") from why
        return built

    def _debian(self, image: str) -> Path:
        """Kept from one run to the next."""
        suite = _SUITES[image.partition(".")[0]]
        root = self._folder / f"debian-{suite}"
        if not (root / "etc" / "debian_version").exists():
            _remove(root)
            _run(["debootstrap", "--variant=minbase", suite, str(root)])
        for each in ("hosts", "resolv.conf"):
            (root / "etc" / each).touch()
        return root

    def _do(self, step: Step, built: Built) -> None:
        if step.instruction == "RUN":
            _in_chroot(built, ["/bin/sh", "-c", step.value])
        elif step.instruction == "COPY":
            self._copy(shlex.split(step.value), built)
        elif step.instruction == "ENV":
            built.environment |= assignments(step.value)
        elif step.instruction == "LABEL":
            built.labels |= assignments(step.value)
        elif step.instruction == "USER":
            built.user = step.value
        elif step.instruction == "WORKDIR":
            built.folder = step.value
            _below(built.root, step.value).mkdir(parents=True, exist_ok=True)
        elif step.instruction not in ("CMD", "EXPOSE", "HEALTHCHECK"):
            raise StepFailed(f"{step.instruction} is unknown here")

    def _copy(self, words: Sequence[str], built: Built) -> None:
        *sources, target = words
        into = _below(built.root, str(Path(built.folder) / target))
        into.mkdir(parents=True, exist_ok=True)
        if sources[0].startswith("--from="):
            other = self.build(sources[0].removeprefix("--from=")).root
            for each in sources[1:]:
                _run(["cp", "--archive", f"{_below(other, each)}/.", str(into)])
            return
        for path in context.files():
            if any(each == "." or path == each for each in sources):
                to = into / (path if sources == ["."] else Path(path).name)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, to)


def _in_chroot(built: Built, command: Sequence[str]) -> None:
    network = {name: os.environ[name] for name in _NETWORK if name in os.environ}
    _run(entered(built, command), {**built.environment, **network, "HOME": "/root"})


def entered(built: Built, command: Sequence[str], mounts: str = _MOUNTS) -> list[str]:
    """A command in the folder, as the stage's user, in namespaces that end with it.

    It has the environment that this is started with, and whoever starts it gives it the stage's:
    everybody may read a command line, and a registry's address may hold a password.
    """
    inside = f"cd {shlex.quote(built.folder)} && exec {shlex.join(command)}"
    script = f"root={shlex.quote(str(built.root))}\n{mounts}"
    return [
        "unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child",
        "/bin/sh", "-ec", script, "sh",
        f"--userspec={built.user}", "/bin/sh", "-c", inside,
    ]  # fmt: skip


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:]
        raise StepFailed(f"{command[0]} ended with {done.returncode}\n{said}")


def _remove(root: Path) -> None:
    """Never what another file system has mounted there."""
    if root.exists():
        _run(["rm", "--recursive", "--force", "--one-file-system", str(root)])
