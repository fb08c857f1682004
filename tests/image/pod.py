"""A built target as Kubernetes would run it: its own user, a root that cannot be written, /tmp,
/dev/shm and the cache in memory, no network but its own, no process but its own."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence

from tests.image.folders import Built, entered

WRITABLE = ("/tmp", "/dev/shm", "/var/cache/headrace")
_MOUNTS = """
ip link set lo up
mount --make-rprivate / && mount --bind "$root" "$root" && mount -o remount,bind,ro "$root"
mount --bind /etc/hosts "$root/etc/hosts"
mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc"
for folder in {writable}; do mount -t tmpfs -o mode=1777 tmpfs "$root$folder"; done
user=$1; shift
exec chroot "$user" "$root" "$@"
"""


def run(
    built: Built,
    command: Sequence[str],
    more: Mapping[str, str] | None = None,
    timeout_s: float = 60,
) -> subprocess.CompletedProcess[str]:
    """The command's end; its processes end with it. Raises subprocess.TimeoutExpired."""
    environment = {**built.environment, "HOME": "/tmp", **(more or {})}
    inside = entered(built, command, _MOUNTS.replace("{writable}", " ".join(WRITABLE)))
    isolated = [inside[0], "--net", *inside[1:]]
    return subprocess.run(
        isolated, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
    )


def said(built: Built, script: str, timeout_s: float = 60) -> str:
    """What a script of bash printed, as a login shell, which is how KubeRay runs Ray.

    Raises AssertionError with its errors where it fails.
    """
    done = run(built, ["bash", "-lc", script], timeout_s=timeout_s)
    assert done.returncode == 0, f"{shlex.quote(script)[:200]}\n{done.stdout}{done.stderr}"[-3000:]
    return done.stdout.strip()
