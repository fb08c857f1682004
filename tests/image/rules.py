"""What a Dockerfile of ours must do, so that the chart, the locks and Kubernetes find what they
expect in its images."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping

from tests.image.dockerfile import ROOT, Stage, assignments, command, way
from tests.kube.chart import CHART, merged

# What each target is made of, in order.
IMAGES = {"cpu": ("runtime", "stores", "example"), "cuda": ("build", "cuda")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# A fixed name of a Debian release, or anything by its digest.
_PINNED = re.compile(r"debian:12\.\d+-slim|\S+@sha256:[0-9a-f]{64}")
_CALLED = ("bash", "ca-certificates", "grep", "python-is-python3", "wget")
_SECRET = re.compile("key|token|secret|passw", re.IGNORECASE)
_COMPILED = "HEADRACE_COMPILE=1 "
_REMOVED = ("apt-get clean", "rm -rf /var/lib/apt/lists/*")
_NO_RIGHTS = "chmod ug-s '{}' +"

Stages = Mapping[str, Stage]


def complaints(known: Stages) -> Iterator[str]:
    for stage in known.values():
        if stage.base not in known and not _PINNED.fullmatch(stage.base):
            yield f"{stage.name}: {stage.base} is neither a release of Debian 12 nor a digest"
    for target in IMAGES:
        for rule in (_user, _programs, _rights, _files, _haproxy, _packages, _labels, _secrets):
            yield from (f"{target}: {said}" for said in rule(target, known))


def _values(target: str, known: Stages, instruction: str) -> list[str]:
    return [each for stage in way(target, known) for each in stage.values(instruction)]


def _user(target: str, known: Stages) -> Iterator[str]:
    number = merged({})["runAsUser"]
    said = _values(target, known, "USER")
    if said[-1:] != [f"{number}:{number}"]:
        yield f"USER is {said}; the chart runs it as {number}"
    elif known[target].steps[-1].instruction != "USER":
        yield "something is done after USER"
    if not any(f"--uid {number} " in each for each in _values(target, known, "RUN")):
        yield f"nobody makes user {number}"


def _programs(target: str, known: Stages) -> Iterator[str]:
    installed = " ".join(e for e in _values(target, known, "RUN") if "apt-get install" in e).split()
    yield from (f"{each} is not installed" for each in _CALLED if each not in installed)
    started = command(_values(target, known, "CMD")[-1])[0]
    if started not in PROJECT["project"]["scripts"]:
        yield f"CMD starts {started}, which is no program of ours"


def _rights(target: str, known: Stages) -> Iterator[str]:
    for each in _values(target, known, "RUN"):
        if "apt-get install" in each and not each.endswith(_NO_RIGHTS):
            yield "what is installed keeps setuid and setgid"


def _files(target: str, known: Stages) -> Iterator[str]:
    for each in _values(target, known, "RUN"):
        if "apt-get install" in each and not all(word in each for word in _REMOVED):
            yield "the files of Debian's packages stay in it"


def _haproxy(target: str, known: Stages) -> Iterator[str]:
    prefix = "/usr/local"
    if known[target].values("COPY") != [f"--from=build-{target} /image{prefix} {prefix}"]:
        yield f"packages are not copied from build-{target} to {prefix}"
    if merged({})["image"]["haproxy"] != "/usr/local/bin/headrace-haproxy":
        yield "the chart looks for headrace-haproxy elsewhere"


def _packages(target: str, known: Stages) -> Iterator[str]:
    """Installed by pip: what the locks name by its digest, and Headrace itself."""
    stage = known[f"build-{target}"]
    installs = [each for each in stage.values("RUN") if "pip install" in each]
    locks = re.findall(r"-r requirements/(\S+)\.lock", " ".join(installs))
    if tuple(locks) != IMAGES[target]:
        yield f"installs {locks}, and must install {IMAGES[target]}"
    for each in installs:
        if "--no-deps" not in each:
            yield "pip may install what no lock names"
        if " -r " in each and "--require-hashes" not in each:
            yield "files are not compared with their digests"
        if " -r " not in each and not each.startswith(_COMPILED):
            yield "its core is not compiled"
    for each in _values(stage.base, known, "RUN"):
        if "pip install" in each and "--require-hashes" not in each:
            yield "what builds is not compared with its digests"


def _labels(target: str, known: Stages) -> Iterator[str]:
    labels = assignments(" ".join(_values(target, known, "LABEL")))
    version = labels.get("org.opencontainers.image.version")
    if version != PROJECT["project"]["version"]:
        yield f"its label says version {version}, pyproject.toml {PROJECT['project']['version']}"
    if f'appVersion: "{version}"' not in (CHART / "Chart.yaml").read_text():
        yield f"its label says version {version}, and the chart another"


def _secrets(target: str, known: Stages) -> Iterator[str]:
    for name in (target, f"build-{target}"):
        for each in (*_values(name, known, "ENV"), *_values(name, known, "LABEL")):
            yield from (f"{n} looks like a secret" for n in assignments(each) if _SECRET.search(n))
