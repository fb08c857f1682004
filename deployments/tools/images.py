"""Builds the container image without a daemon: `python -m deployments.tools.images`, `make images`.

Needs root, and Debian's buildah, podman and mmdebstrap. The base is `--base`, by digest where a
registry can be reached, or Debian by mmdebstrap from this machine's own apt sources. Every time in
the image is the commit's, so that two builds of one commit from one state of the archives are
equal: `--twice` builds two, bases included, and compares them. Beside it, in `out/images`: its
packages (CycloneDX 1.6: Python's of the locks and Debian's of the image) and its provenance
(in-toto, SLSA 1.0).
Source: buildah-build(1), reproducible-builds.org (SOURCE_DATE_EPOCH), slsa.dev/provenance/v1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUT = ROOT / "out" / "images"
_RELEASE = "bookworm"
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_LOCKS = {"cpu": ("build", "compiler", "runtime", "stores", "example"), "cuda": ("build", "cuda")}
_CERTIFICATES = Path("/etc/ssl/certs")
_SHOWN = 20


class CannotBuild(Exception):
    """A program failed, or is not there; the message is for people."""


@dataclass(frozen=True, slots=True)
class Built:
    """`digest`: of the image's manifest; `layers`: their digests, the base's first."""

    name: str
    digest: str
    layers: tuple[str, ...]
    size: int  # bytes, unpacked


def _said(*command: str, env: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=env)
    except FileNotFoundError as fault:
        raise CannotBuild(f"{command[0]} is not installed (Debian's package has it)") from fault
    except subprocess.CalledProcessError as fault:
        raise CannotBuild(f"{' '.join(command[:3])} … ended with {fault.returncode}") from fault
    return done.stdout


def debian(name: str, epoch: str) -> None:
    """Makes a base of that name by this machine's apt sources, without pages and translations."""
    copyrights = "--dpkgopt=path-include=/usr/share/doc/*/copyright"
    excluded = [f"--dpkgopt=path-exclude={each}" for each in _LEFT_OUT]
    sources = [*Path("/etc/apt").glob("sources.list.d/debian*.sources")] or [
        Path("/etc/apt/sources.list")
    ]
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "base.tar"
        (Path(folder) / "Dockerfile").write_text(f"FROM scratch\nADD {made.name} /\n")
        _said(
            "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", *excluded, copyrights,
            "--include=ca-certificates", _RELEASE, str(made), *map(str, sources),
            env={**os.environ, "SOURCE_DATE_EPOCH": epoch},
        )  # fmt: skip
        _said("buildah", "build", "--quiet", *_dated(epoch), f"--tag={name}", folder)


def build(target: str, name: str, base: str, epoch: str) -> Built:
    """Builds the Dockerfile's target of the last commit with the network, certificates and pip
    settings of this machine, none of which stays in the image."""
    others = [path for path in _pip_paths() if not path.is_relative_to(_CERTIFICATES)]
    paths = dict.fromkeys([_CERTIFICATES, *others])
    mounted = [f"--volume={path}:{path}:ro" for path in paths]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.mkdir()
        _said("git", "-C", str(ROOT), "archive", "--format=tar", f"--output={source}.tar", "HEAD")
        _said("tar", "-x", "-p", "-f", f"{source}.tar", "-C", str(source))
        _said(
            "buildah", "build", "--quiet", "--isolation=chroot", *_dated(epoch),
            f"--build-arg=BASE={base}", f"--build-arg=SOURCE_DATE_EPOCH={epoch}", *mounted,
            f"--target={target}", f"--tag={name}", str(source),
        )  # fmt: skip
    return inspected(name)


def _dated(epoch: str) -> tuple[str, ...]:
    """Options of a build whose every time is that one."""
    return ("--no-cache", "--layers=false", "--format=oci", f"--timestamp={epoch}")


def _pip_paths() -> Iterator[Path]:
    """Pip's settings of this machine, and the files and folders that they name."""
    said = _said(sys.executable, "-m", "pip", "config", "debug")
    for line in said.splitlines():
        file, _, exists = line.strip().partition(", exists: ")
        if exists == "True":
            yield Path(file)
    for line in _said(sys.executable, "-m", "pip", "config", "list").splitlines():
        for word in line.partition("=")[2].strip("'\"").split():
            path = Path(word.removeprefix("file://"))
            if path.is_absolute() and path.exists():
                # An index of files names them by paths beside it.
                yield path.parent if word.startswith("file://") else path


def inspected(name: str) -> Built:
    """What an image of the local storage is."""
    said = json.loads(_said("podman", "image", "inspect", name))[0]
    return Built(name, said["Digest"], tuple(said["RootFS"]["Layers"]), said["Size"])


def differences(one: str, other: str) -> list[str]:
    """Files that two images of the local storage do not share, by path."""
    first, second = _files(one), _files(other)
    return sorted(
        path for path in first.keys() | second.keys() if first.get(path) != second.get(path)
    )


def _files(name: str) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    container = _said("podman", "create", name, "true").strip()
    try:
        export = subprocess.Popen(["podman", "export", container], stdout=subprocess.PIPE)
        with export, tarfile.open(fileobj=export.stdout, mode="r|") as files:
            for each in files:
                content = files.extractfile(each) if each.isreg() else None
                digest = hashlib.sha256(content.read()).digest() if content else b""
                about = (each.mode, each.uid, each.gid, each.mtime, each.linkname, digest)
                found[each.name] = about
    finally:
        _said("podman", "rm", container)
    return found


def debian_packages(name: str) -> list[dict[str, str]]:
    """Of an image, as CycloneDX's components."""
    shown = ("--show", "--showformat", "${Package} ${Version} ${Architecture}\\n")
    root = _said("podman", "image", "mount", name).strip()
    try:
        said = _said("dpkg-query", f"--admindir={root}/var/lib/dpkg", *shown)
    finally:
        _said("podman", "image", "unmount", name)
    rows = [line.split() for line in said.splitlines()]
    return [
        {
            "type": "library", "name": package, "version": version,
            "bom-ref": (purl := f"pkg:deb/debian/{package}@{version}?arch={arch}"), "purl": purl,
        }
        for package, version, arch in rows
    ]  # fmt: skip


def provenance(built: Built, target: str, base: str, epoch: str) -> dict[str, object]:
    """What it was made of and how, as in-toto's statement; signing it is up to who publishes."""
    commit = _said("git", "-C", str(ROOT), "rev-parse", "HEAD").strip()
    materials: list[dict[str, object]] = [
        {"uri": "git+headrace", "digest": {"gitCommit": commit}},
        {"uri": base, "digest": {"sha256": inspected(base).digest.removeprefix("sha256:")}},
    ]
    for lock in _LOCKS[target]:
        content = (ROOT / "requirements" / f"{lock}.lock").read_bytes()
        digest = {"sha256": hashlib.sha256(content).hexdigest()}
        materials.append({"uri": f"requirements/{lock}.lock", "digest": digest})
    parameters = {"target": target, "base": base, "sourceDateEpoch": int(epoch)}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": built.name, "digest": {"sha256": built.digest.removeprefix("sha256:")}}
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "https://github.com/containers/buildah",
                "externalParameters": parameters,
                "resolvedDependencies": materials,
            },
            "runDetails": {
                "builder": {
                    "id": "make images",
                    "version": {"buildah": _said("buildah", "--version").split()[2]},
                }
            },
        },
    }


def described(built: Built, target: str, base: str, epoch: str) -> None:
    """Writes its packages and its provenance below `out/images`."""
    packages = json.loads((ROOT / "out" / "sbom" / f"{target}.cdx.json").read_text())
    packages["components"] += debian_packages(built.name)
    packages["metadata"]["component"] |= {
        "type": "container", "version": built.digest, "name": built.name,
    }  # fmt: skip
    statement = provenance(built, target, base, epoch)
    for kind, content in (("cdx", packages), ("provenance", statement)):
        path = OUT / f"{target}.{kind}.json"
        path.write_text(json.dumps(content, indent=2) + "\n")
        print(f"wrote {path.relative_to(ROOT)}")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deployments.tools.images")
    parser.add_argument("--target", choices=sorted(_LOCKS), default="cpu")
    parser.add_argument("--base", help="an image by its digest; Debian by mmdebstrap otherwise")
    parser.add_argument("--twice", action="store_true", help="build two, and compare them")
    asked = parser.parse_args(words)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    suffix = "" if asked.target == "cpu" else f"-{asked.target}"
    name = f"localhost/headrace:{project['version']}{suffix}"
    OUT.mkdir(parents=True, exist_ok=True)
    try:
        epoch = _said("git", "-C", str(ROOT), "log", "-1", "--format=%ct").strip()
        if _said("git", "-C", str(ROOT), "status", "--porcelain"):
            print("what is not committed is left out")
        base = asked.base or f"localhost/debian:{_RELEASE}"
        built = _made(asked.target, name, base, epoch, own_base=asked.base is None)
        print(f"{name} {built.digest}: {built.size / 1e6:,.0f} MB in {len(built.layers)} layers")
        described(built, asked.target, base, epoch)
        if not asked.twice:
            return 0
        again = _made(asked.target, f"{name}-again", base, epoch, own_base=asked.base is None)
        return _compared(built, again)
    except CannotBuild as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1


def _made(target: str, name: str, base: str, epoch: str, *, own_base: bool) -> Built:
    """From nothing, where the base is not somebody else's."""
    if own_base:
        print(f"making {base} of {_RELEASE} …", flush=True)
        debian(base, epoch)
    print(f"building {name}: packages, the compiled core … (minutes)", flush=True)
    return build(target, name, base, epoch)


def _compared(built: Built, again: Built) -> int:
    if again.digest == built.digest:
        print("both builds are equal, manifest included")
        return 0
    found = differences(built.name, again.name)
    print(f"{len(found)} files differ: {', '.join(found[:_SHOWN])}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
