"""Builds the container image without a daemon: `python -m deployments.tools.images`, `make images`.

Needs root, and Debian's buildah, podman and mmdebstrap. The base is `--base`, by digest where a
registry can be reached, or Debian by mmdebstrap from this machine's own apt sources. Every time in
the image is the commit's, so that two builds of one commit from one state of the archives are
equal: `--twice` builds two, bases included, and compares them. Beside it, in `out/images`: its
packages (CycloneDX 1.6: Python's, with the digests of the locks, and Debian's) and its provenance
(in-toto, SLSA 1.0).
Source: buildah-build(1), reproducible-builds.org (SOURCE_DATE_EPOCH), slsa.dev/provenance/v1.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).parents[2]
OUT = ROOT / "out" / "images"
_RELEASE = "bookworm"
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
# What builds, and what the image has.
_BUILDS = ("build", "compiler")
_LOCKS = {"cpu": ("runtime", "stores", "example"), "cuda": ("build", "cuda")}
_LOCKED = re.compile(r"^(\S+)==(\S+)( ;.*?)?((?: *\\\n +--hash=\S+)+)", re.MULTILINE)
_ARCHIVE = re.compile(r"https?://(\w+\.)*debian\.org/[^@\s]*")
_APT = [*Path("/etc/apt").glob("sources.list.d/debian*.sources"), Path("/etc/apt/sources.list")]
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# Places in the stages that build.
_BUNDLE, _PIP = "/etc/pip-certificates.crt", "/etc/pip.conf"
REVISION = "org.opencontainers.image.revision"
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


@dataclass(frozen=True, slots=True)
class Source:
    """What is built, all of one commit; `epoch`: its time."""

    target: str
    commit: str
    epoch: str

    def read(self, path: str) -> str:
        return _said("git", "-C", str(ROOT), "show", f"{self.commit}:{path}")

    def lock(self, name: str) -> str:
        return self.read(f"requirements/{name}.lock")


@dataclass(frozen=True, slots=True)
class Base:
    """`archives`: SHA-256 of the signed lists (InRelease) of which it was made here."""

    name: str
    digest: str
    archives: Mapping[str, str]


def _said(*command: str, env: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=env)
    except FileNotFoundError as fault:
        raise CannotBuild(f"{command[0]} is not installed (Debian's package has it)") from fault
    except subprocess.CalledProcessError as fault:
        raise CannotBuild(f"{' '.join(command[:3])} … ended with {fault.returncode}") from fault
    return done.stdout


def sources() -> str:
    """Of this machine's Debian, for the base and what is installed in it: they stay in the image,
    so that only Debian's own archives of its release may be named, and nobody's password."""
    text = "\n\n".join(_allowed(path) for path in _APT if path.exists())
    if not text.strip():
        raise CannotBuild("this machine names no archives of Debian: name a base by --base")
    return text


def _allowed(path: Path) -> str:
    text = "\n".join(e for e in path.read_text().splitlines() if not e.startswith("#"))
    uris = re.findall(r"\S+:/\S*", text)
    suites = re.findall(r"^deb(?:-src)? (?:\[.*\] )?\S+ (\S+)", text, re.MULTILINE)
    for line in re.findall("^Suites:(.*)", text, re.MULTILINE):
        suites += line.split()
    if not all(_ARCHIVE.fullmatch(uri) for uri in uris):  # not repeated: it may hold a password
        raise CannotBuild(f"{path} names others than debian.org's archives: name a base by --base")
    if others := [each for each in suites if not re.fullmatch(rf"{_RELEASE}(-\w+)*", each)]:
        said = f"{path} names {', '.join(others)}, and the image is of {_RELEASE}"
        raise CannotBuild(f"{said}: name a base by --base")
    return text.strip() + "\n"


def debian(name: str, epoch: str) -> dict[str, str]:
    """Makes a base of that name by this machine's apt sources, without pages and translations.
    Returns the SHA-256 of each archive's signed list (InRelease)."""
    copyrights = "--dpkgopt=path-include=/usr/share/doc/*/copyright"
    excluded = [f"--dpkgopt=path-exclude={each}" for each in _LEFT_OUT]
    with tempfile.TemporaryDirectory() as folder:
        made, lists, asked = (Path(folder) / e for e in ("base.tar", "lists", "debian.sources"))
        asked.write_text(sources())
        (Path(folder) / "Dockerfile").write_text(f"FROM scratch\nADD {made.name} /\n")
        _said(
            "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", *excluded, copyrights,
            f'--customize-hook=cd "$1/var/lib/apt/lists" && sha256sum *InRelease > {lists}',
            '--customize-hook=: > "$1/etc/hostname"; : > "$1/etc/resolv.conf"',
            "--include=ca-certificates", _RELEASE, str(made), str(asked),
            env={**os.environ, "SOURCE_DATE_EPOCH": epoch},
        )  # fmt: skip
        _said("buildah", "build", "--quiet", *_dated(epoch), f"--tag={name}", folder)
        rows = [line.split() for line in lists.read_text().splitlines()]
    return {archive: digest for digest, archive in rows}


@contextmanager
def _files_of(name: str) -> Iterator[Path]:
    """Of an image of the local storage, to be read."""
    try:
        yield Path(_said("podman", "image", "mount", name).strip())
    finally:
        _said("podman", "image", "unmount", name)


def release_of(root: Path) -> dict[str, str]:
    """Debian's, by an image's files. Raises CannotBuild for another than the Dockerfile's."""
    lines = (root / "usr/lib/os-release").read_text().splitlines()
    said = {key: text.strip('"') for key, _, text in (line.partition("=") for line in lines)}
    if said.get("VERSION_CODENAME") != _RELEASE:
        raise CannotBuild(f"the base is {said.get('PRETTY_NAME')}, and must be Debian {_RELEASE}")
    return said


def build(name: str, source: Source, base: Base) -> Built:
    """Builds the Dockerfile's target of the commit. What compiles and installs has this machine's
    certificates and pip settings; those stages are an image of their own, and nothing is mounted
    in what the other is made of."""
    packages = f"{name}-packages"
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "source"
        tree.mkdir()
        archive = ("archive", "--format=tar", f"--output={tree}.tar", source.commit)
        _said("git", "-C", str(ROOT), *archive)
        _said("tar", "-x", "-p", "-f", f"{tree}.tar", "-C", str(tree))
        common = (
            "buildah", "build", "--quiet", "--isolation=chroot", *_dated(source.epoch),
            f"--build-arg=BASE={base.name}", f"--build-arg=SOURCE_DATE_EPOCH={source.epoch}",
        )  # fmt: skip
        stage, mounts = f"build-{source.target}", _mounts(Path(folder))
        mounted = [f"--volume={path}:{place}:ro" for place, path in mounts.items()]
        _said(*common, *mounted, f"--target={stage}", f"--tag={packages}", str(tree))
        try:
            _said(
                *common, f"--build-context={stage}=container-image://{packages}",
                f"--label={REVISION}={source.commit}",
                f"--annotation=org.opencontainers.image.base.digest={base.digest}",
                f"--target={source.target}", f"--tag={name}", str(tree),
            )  # fmt: skip
        finally:
            _said("podman", "rmi", packages)
    with _files_of(name) as root:
        if found := [*left_behind(root, mounts)]:
            raise CannotBuild(f"{name} has files of this machine: {', '.join(found)}")
    return inspected(name)


def left_behind(root: Path, mounts: Iterable[str]) -> Iterator[str]:
    """Paths of an image that only the machine that built it has."""
    yield from (path for path in mounts if (root / path.lstrip("/")).exists())
    for path in ("/etc/hostname", "/etc/resolv.conf"):
        inside, own = root / path.lstrip("/"), Path(path)
        both = inside.is_file() and own.is_file()
        if both and inside.read_bytes() == own.read_bytes() != b"":
            yield path


def _dated(epoch: str) -> tuple[str, ...]:
    """Options of a build whose every time is that one."""
    return ("--no-cache", "--layers=false", "--format=oci", f"--timestamp={epoch}")


def _mounts(folder: Path) -> dict[str, Path]:
    """This machine's pip settings in one file, its certificates, and what the settings name, by
    their places in the stages that build."""
    said = _said(sys.executable, "-m", "pip", "config", "list")
    settings = configparser.ConfigParser(interpolation=None)
    settings["global"] = {}
    lines = sorted(said.splitlines(), key=lambda line: line.startswith(":env:"))
    for name, _, value in (line.partition("=") for line in lines):
        section, _, key = name.rpartition(".")
        section = "global" if section == ":env:" else section
        if not settings.has_section(section):
            settings.add_section(section)
        settings[section][key] = ast.literal_eval(value)
    known = settings["global"]
    bundle = known.get("cert") or os.environ.get("SSL_CERT_FILE") or _CERTIFICATES
    for section in settings.sections():
        settings.remove_option(section, "cert")
    found = {_BUNDLE: Path(bundle)} if Path(bundle).exists() else {}
    words = [word for each in settings.values() for text in each.values() for word in text.split()]
    for word in words:
        path = Path(word.removeprefix("file://"))
        if path.is_absolute() and path.exists():
            # An index of files names them by paths beside it.
            path = path.parent if word.startswith("file://") else path
            found[str(path)] = path
    if found.get(_BUNDLE):
        known["cert"] = _BUNDLE
    found[_PIP] = folder / "pip.conf"
    with found[_PIP].open("w") as file:
        settings.write(file)
    return found


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


def debian_packages(root: Path) -> list[dict[str, object]]:
    """Of an image's files, as CycloneDX's components."""
    shown = ("--show", "--showformat", "${Package} ${Version} ${Architecture}\\n")
    said = _said("dpkg-query", f"--admindir={root}/var/lib/dpkg", *shown)
    distro = f"debian-{release_of(root)['VERSION_ID']}"
    rows = [line.split() for line in said.splitlines()]
    return [
        {
            "type": "library", "name": package, "version": version, "bom-ref": (purl := (
                f"pkg:deb/debian/{quote(package)}@{quote(version, safe=':')}"
                f"?arch={arch}&distro={distro}"
            )), "purl": purl,
        }
        for package, version, arch in rows
    ]  # fmt: skip


def python_packages(root: Path, source: Source) -> list[dict[str, object]]:
    """Of an image's files, with the digests of the locks. Raises CannotBuild where the image has
    what no lock names, or lacks what one names for every platform."""
    own, locked = {"headrace"}, {}
    needed = set()
    for lock in dict.fromkeys([*_BUILDS, *_LOCKS[source.target]]):
        for name, version, marker, digests in _LOCKED.findall(source.lock(lock)):
            locked[_plain(name), version] = re.findall("sha256:(\\w+)", digests)
            if lock in _LOCKS[source.target] and not marker:
                needed.add((_plain(name), version))
    found = {}
    for path in sorted(root.glob("usr/local/lib/python3*/dist-packages/*.dist-info/METADATA")):
        fields = dict(re.findall(r"^(Name|Version): (\S+)", path.read_text(), re.MULTILINE))
        found[_plain(fields["Name"]), fields["Version"]] = fields["Name"]
    if others := [key for key in found if key not in locked and key[0] not in own]:
        raise CannotBuild(f"no lock names {', '.join(map('=='.join, others))} of the image")
    if lacking := sorted(needed - found.keys()):
        raise CannotBuild(f"the image lacks {', '.join(map('=='.join, lacking))} of the locks")
    return [
        {
            "type": "library", "name": name, "version": version,
            "bom-ref": (purl := f"pkg:pypi/{plain}@{quote(version)}"), "purl": purl,
            "externalReferences": [{
                "type": "distribution", "url": f"https://pypi.org/project/{plain}/{version}/",
                "hashes": [{"alg": "SHA-256", "content": each} for each in digests],
            }] if (digests := locked.get((plain, version))) else [],
        }
        for (plain, version), name in found.items()
    ]  # fmt: skip


def _plain(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def provenance(built: Built, source: Source, base: Base) -> dict[str, object]:
    """What it was made of and how, as in-toto's statement; signing it is up to who publishes."""
    materials: list[dict[str, object]] = [
        {"uri": "git+headrace", "digest": {"gitCommit": source.commit}},
        {"uri": base.name, "digest": {"sha256": base.digest.removeprefix("sha256:")}},
    ]
    for archive, digest in base.archives.items():
        materials.append({"uri": archive, "digest": {"sha256": digest}})
    for lock in dict.fromkeys([*_BUILDS, *_LOCKS[source.target]]):
        digest = hashlib.sha256(source.lock(lock).encode()).hexdigest()
        materials.append({"uri": f"requirements/{lock}.lock", "digest": {"sha256": digest}})
    parameters = {
        "target": source.target, "base": base.name, "sourceDateEpoch": int(source.epoch),
    }  # fmt: skip
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


def described(built: Built, source: Source, base: Base) -> None:
    """Writes its packages and its provenance below `out/images`."""
    with _files_of(built.name) as root:
        components = [*python_packages(root, source), *debian_packages(root)]
    about = {"type": "container", "name": built.name, "version": built.digest}
    packages = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"component": about}, "components": components,
    }  # fmt: skip
    statement = provenance(built, source, base)
    for kind, content in (("cdx", packages), ("provenance", statement)):
        path = OUT / f"{source.target}.{kind}.json"
        path.write_text(json.dumps(content, indent=2) + "\n")
        print(f"wrote {path.relative_to(ROOT)}")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deployments.tools.images")
    parser.add_argument("--target", choices=sorted(_LOCKS), default="cpu")
    parser.add_argument("--base", help="an image by its digest; Debian by mmdebstrap otherwise")
    parser.add_argument("--twice", action="store_true", help="build two, and compare them")
    asked = parser.parse_args(words)
    OUT.mkdir(parents=True, exist_ok=True)
    try:
        commit = _said("git", "-C", str(ROOT), "rev-parse", "HEAD").strip()
        epoch = _said("git", "-C", str(ROOT), "show", "-s", "--format=%ct", commit).strip()
        if _said("git", "-C", str(ROOT), "status", "--porcelain"):
            print("what is not committed is left out")
        source = Source(asked.target, commit, epoch)
        suffix = "" if asked.target == "cpu" else f"-{asked.target}"
        project = tomllib.loads(source.read("pyproject.toml"))["project"]
        name = f"localhost/headrace:{project['version']}{suffix}"
        built, base = _made(name, source, asked.base)
        print(f"{name} {built.digest}: {built.size / 1e6:,.0f} MB in {len(built.layers)} layers")
        described(built, source, base)
        if not asked.twice:
            return 0
        again, _ = _made(f"{name}-again", source, asked.base)
        try:
            return _compared(built, again)
        finally:
            _said("podman", "rmi", again.name)
    except CannotBuild as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1


def _made(name: str, source: Source, given: str | None) -> tuple[Built, Base]:
    """From nothing, where the base is not somebody else's."""
    base_name, archives = given or f"localhost/debian:{_RELEASE}", {}
    if given is None:
        print(f"making {base_name} …", flush=True)
        archives = debian(base_name, source.epoch)
    else:
        _said("buildah", "pull", "--quiet", "--policy=missing", base_name)
    with _files_of(base_name) as root:
        release_of(root)
    base = Base(base_name, inspected(base_name).digest, archives)
    print(f"building {name}: packages, the compiled core … (minutes)", flush=True)
    return build(name, source, base), base


def _compared(built: Built, again: Built) -> int:
    if again.digest == built.digest:
        print("both builds are equal, manifest included")
        return 0
    found = differences(built.name, again.name)
    shown = f"{len(found)} files differ: {', '.join(found[:_SHOWN])}"
    print(shown if found else "only the images' configuration differs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
