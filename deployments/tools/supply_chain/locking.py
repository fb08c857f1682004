"""Makes the locks anew from pyproject.toml with `uv`, which asks the registry and installs nothing.

All locks but `cuda` come of one resolution, so they agree on every version. A version that a lock
has stays as long as pyproject.toml allows it, unless an upgrade is asked for.
"""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

from deployments.tools.supply_chain.lock_sets import FOLDER, ROOT, SETS, Locked, LockSet, parsed

PYTHON = "3.11"
HEADER = "# Written by `make lock`; what it is for: docs/decisions/0023-locks-with-hashes.md\n"
_PLAIN = ("--generate-hashes", "--no-annotate", "--no-header", "--no-emit-index-url")
_EVERYWHERE = ("--universal", "--python-version", PYTHON)
# Debian 12 has glibc 2.36.
_CUDA = ("--python-platform", "x86_64-manylinux_2_36", "--python-version", PYTHON)
_RESOLVE_S = 600
_NO_TORCH = "torch ; python_version < '3'\n"


class CannotLock(Exception):
    """What uv said: usually that no versions fit together, or that no registry answers in
    time."""


class Locker:
    """Works in `folder`, which is the caller's to remove. `said`: what uv warned of, for instance
    yanked releases."""

    def __init__(self, folder: Path, upgrade: bool = False) -> None:
        self._folder = folder
        self._upgrade = upgrade
        self.said: list[str] = []

    def texts(self) -> dict[str, str]:
        """What ought to stand in each lock, by name. Raises CannotLock."""
        union = self._union()
        made: dict[str, list[Locked]] = {}
        for each in SETS:
            found = list(parsed(self._compiled(each, union)))
            below = {_key(package) for name in each.upon for package in made[name]}
            made[each.name] = [package for package in found if _key(package) not in below]
        return {name: _text(packages) for name, packages in made.items()}

    def _union(self) -> Path:
        """One resolution of everything for processors, whose versions the locks take."""
        sets = [each for each in SETS if not each.cuda and not each.alone]
        path = self._folder / "union.txt"
        if not self._upgrade:
            path.write_text(_kept(sets))
        extras = [extra for each in sets for extra in each.extras]
        self._compile(path, extras, [also for each in sets for also in each.also], _EVERYWHERE)
        return path

    def _compiled(self, each: LockSet, union: Path) -> str:
        path = self._folder / f"{each.name}.txt"
        if each.path.exists() and not self._upgrade:
            path.write_text(each.path.read_text())
        if each.alone:
            return self._of(path, each.also, ("--no-deps", *_EVERYWHERE))
        if each.cuda:
            return self._compile(path, each.extras, each.also, _CUDA)
        return self._compile(path, each.extras, each.also, (*_EVERYWHERE, "-c", str(union)))

    def _compile(
        self, path: Path, extras: Sequence[str], also: Sequence[str], options: Sequence[str]
    ) -> str:
        if "--universal" in options:
            without = self._folder / "overrides.txt"
            without.write_text(_NO_TORCH)
            options = (*options, "--override", str(without))
        options = (*options, *(f"--extra={extra}" for extra in extras))
        return self._of(path, also, (str(ROOT / "pyproject.toml"), *options))

    def _of(self, path: Path, also: Sequence[str], options: Sequence[str]) -> str:
        if also:
            more = path.with_suffix(".in")
            more.write_text("\n".join(also))
            options = (str(more), *options)
        command = [uv(), "pip", "compile", *options, *_PLAIN, "--output-file", str(path)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=ROOT, timeout=_RESOLVE_S, check=False
            )
        except subprocess.TimeoutExpired as late:
            raise CannotLock(f"uv had no answer for {path.stem} within {_RESOLVE_S} s") from late
        if done.returncode:
            raise CannotLock(done.stderr.strip())
        self.said += [line for line in done.stderr.splitlines() if line.startswith("warning")]
        return path.read_text()


def uv() -> str:
    """The program, beside this interpreter."""
    return str(Path(sysconfig.get_path("scripts")) / "uv")


def _key(package: Locked) -> tuple[str, str, str]:
    return package.name, package.version, package.marker


def _kept(sets: Iterable[LockSet]) -> str:
    """What the locks have now; uv prefers it."""
    return "\n".join(each.path.read_text() for each in sets if each.path.exists())


def _text(packages: Iterable[Locked]) -> str:
    return HEADER + "".join(f"{each}\n" for each in packages)


def write(texts: dict[str, str], folder: Path = FOLDER) -> list[str]:
    """The names of those that changed; the others stay untouched, so nothing is installed anew."""
    folder.mkdir(exist_ok=True)
    changed = []
    for name, text in texts.items():
        path = folder / f"{name}.lock"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            changed.append(name)
    return changed
