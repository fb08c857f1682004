"""The file system of a pod's container on a machine of a `Lab`, as lines of a shell script.

The image is this machine's own file system, as its root sees it, with what the interpreter needs
where anybody may read it. What has no place in it yet (a volume's mount point, the program in
HAProxy's place) is laid over it for that machine alone. Volumes are tmpfs: `emptyDir`, and files of
ConfigMaps and Secrets, written as a kubelet writes them: a new folder, then `..data` names it at
once. Then everything but the volumes is read-only, where the container asks for that.
Source: mount(8), Kubernetes' volumes and its AtomicWriter.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.cluster.machines import CHECKOUT
from tests.kube.chart import Object
from tests.kube.operator_pods import quantity

OWN = Path("/mnt")  # the machine's, for what no container sees
_TMP = "/tmp"  # a machine has one of its own already
_UNLIMITED = "4Gi"
_BY_THE_KERNEL = r"/proc(/.*)?|/sys(/.*)?|/dev(/(pts|mqueue|hugepages))?"


class UnknownVolume(Exception):
    """A volume of a kind that needs a cluster."""


def script(pod: Object, program: Path, hosts: Mapping[str, str]) -> str:
    """What makes the machine's file system that of the pod's first container. `program`: what
    stands in HAProxy's place; `hosts`: names to addresses."""
    container = pod["spec"]["containers"][0]
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    lines = ["set -e", f"mount -t tmpfs -o mode=755 tmpfs {OWN}"]
    lines += _readable([Path(sys.base_prefix), Path(sys.prefix), CHECKOUT])
    lines += _laid_over(["/etc", str(program.parent), *map(_existing, mounts)])
    link = shlex.quote(str(Path(sys.prefix) / "bin" / program.name))
    lines.append(f"ln -sfn {link} {shlex.quote(str(program))}")
    known = "".join(f"{ip} {name}\n" for name, ip in hosts.items())
    lines.append(f"printf %s {shlex.quote(known)} > /etc/hosts")
    lines.append("rm -f /etc/resolv.conf; : > /etc/resolv.conf")
    volumes = {each["name"]: each for each in pod["spec"].get("volumes", ())}
    group = pod["spec"].get("securityContext", {}).get("fsGroup", 0)
    for path, mount in mounts.items():
        lines += _volume(volumes[mount["name"]], path, group)
    if container.get("securityContext", {}).get("readOnlyRootFilesystem"):
        lines += _read_only(list(mounts))
    return "\n".join(lines)


def files_folder(name: str) -> Path:
    """Where files of the volume of that name are written on the machine."""
    return OWN / "volumes" / name


def publish(folder: Path, files: Mapping[str, str]) -> None:
    """All at once, also instead of what was there."""
    data = folder / "..data"
    old = folder / data.readlink() if data.is_symlink() else None
    new = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    new.chmod(0o755)
    for name, text in files.items():
        (new / name).write_text(text)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..data_tmp").symlink_to(new.name)
    (folder / "..data_tmp").rename(data)
    if old is not None:
        shutil.rmtree(old)


def _readable(needed: Sequence[Path]) -> Iterator[str]:
    """Paths behind folders that are one user's: such a folder gets nothing else, for everybody."""
    hidden: dict[Path, list[Path]] = {}
    for path in {*needed, *(each.resolve() for each in needed)}:
        if first := next((p for p in [*path.parents][::-1] if not p.stat().st_mode & 0o001), None):
            hidden.setdefault(first, []).append(path)
    for number, (folder, paths) in enumerate(hidden.items()):
        instead = OWN / f"readable{number}"
        for path in paths:
            there = instead / path.relative_to(folder)
            yield f"mkdir -p {there}; mount --rbind {shlex.quote(str(path))} {there}"
        yield f"mount --rbind {instead} {shlex.quote(str(folder))}"


def _existing(path: str) -> str:
    """The folder that a mount point must be made in; the mount point itself where it is there."""
    found = Path(path)
    while not found.is_dir():
        found = found.parent
    if found == Path("/"):
        raise UnknownVolume(f"{path} would need a folder in /, which is not laid over")
    return str(found)


def _laid_over(folders: Sequence[str]) -> Iterator[str]:
    own = [each for each in {*folders} if not Path(each).is_relative_to(_TMP)]
    for number, folder in enumerate(sorted({*own} - {"/dev/shm"})):
        upper, work = OWN / f"upper{number}", OWN / f"work{number}"
        options = f"lowerdir={folder},upperdir={upper},workdir={work}"
        yield f"mkdir {upper} {work}; mount -t overlay -o {options} overlay {folder}"


def _volume(volume: Object, path: str, group: int) -> Iterator[str]:
    kind = next(iter(volume.keys() - {"name"}))
    if path == _TMP and kind == "emptyDir":
        return
    yield f"mkdir -p {path}"
    if kind == "emptyDir":
        size = int(quantity(volume[kind].get("sizeLimit", _UNLIMITED)))
        yield f"mount -t tmpfs -o size={size},mode=2777,gid={group} tmpfs {path}"
    elif kind == "projected":
        folder = files_folder(volume["name"])
        yield f"mkdir -p {folder}; mount --bind -o ro {folder} {path}"
    else:
        raise UnknownVolume(f"volume {volume['name']} is a {kind}")


def _read_only(but: Sequence[str]) -> Iterator[str]:
    """Every mount but those and the kernel's; one that another lies over is nobody's."""
    mine = "|".join([*but, f"{OWN}(/.*)?", _BY_THE_KERNEL])
    yield (
        "awk '{print $5}' /proc/self/mountinfo | sort -u "
        f"| grep -vxE {shlex.quote(mine)} | while read -r mounted; do "
        'if mountpoint -q "$mounted"; then mount -o remount,bind,ro "$mounted"; fi; done'
    )
