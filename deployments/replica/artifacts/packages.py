"""Installs the packages of a Python class into the node's cache, and puts them on the import path.

pip installs what the node's own environment does not have yet, into a folder of its own: once a
node for each list of requirements. What the environment has stays as it is (a constraint for pip),
since it is already imported: a package that needs another version of it is refused. Why Ray's
`runtime_env` does not do it: docs/decisions/0059-packages-by-pip.md.

Source: pip's `--prefix` and `--constraint`.
"""

from __future__ import annotations

import importlib
import json
import logging
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from runtimes import staging
from runtimes.errors import LoadError

PHASE = "installing"
_LAYOUT = "1"
_LONGEST_S = 1800.0
_SAID = re.compile(r"^(?:ERROR|error): ?(.+)$", re.MULTILINE)
_SAID_CHARS = 500
logger = logging.getLogger("headrace.replica")


def install(
    requirements: Sequence[str], cache_dir: Path, progress: Callable[[str, float], None]
) -> None:
    """Install them, unless this node has them, and let this process import them. Blocks while this
    or another process installs the same. Raises `LoadError` with what pip says."""
    if not requirements:
        return
    progress(PHASE, 0.0)
    present = _present(cache_dir)

    def build(folder: Path) -> None:
        (folder / "constraints.txt").write_text("\n".join(present))
        _run_pip(folder, requirements)

    parts = ["packages", _LAYOUT, sys.version, json.dumps(list(requirements)), *present]
    folder = staging.staged(cache_dir, parts, build)
    paths = sysconfig.get_paths("posix_prefix", vars={"base": str(folder), "platbase": str(folder)})
    for place in dict.fromkeys((paths["purelib"], paths["platlib"])):
        if place not in sys.path:
            sys.path.append(place)
    importlib.invalidate_caches()
    progress(PHASE, 1.0)


def _present(cache_dir: Path) -> list[str]:
    """name==version of what the environment has, sorted; without what `install` added."""
    staged = str(cache_dir / "staged")
    own = [path for path in sys.path if not path.startswith(staged)]
    found = {
        each.metadata["Name"].lower(): each.version
        for each in metadata.distributions(path=own)
        if each.metadata["Name"]
    }
    found.pop("headrace", None)
    return sorted(f"{name}=={version}" for name, version in found.items())


def _run_pip(folder: Path, requirements: Sequence[str]) -> None:
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--no-input", "--no-warn-script-location", "--prefix", str(folder),
        "--constraint", str(folder / "constraints.txt"), "--", *requirements,
    ]  # fmt: skip
    wanted = ", ".join(requirements)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_LONGEST_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LoadError(
            f"installing {wanted} took over {_LONGEST_S:.0f} s; is the package index reached?"
        ) from None
    if done.returncode == 0:
        return
    logger.error("pip cannot install %s:\n%s", wanted, done.stderr or done.stdout)
    said = "; ".join(dict.fromkeys(_SAID.findall(done.stderr)))[:_SAID_CHARS]
    said = said or done.stderr.strip()[-_SAID_CHARS:]
    hint = (
        ": they need other versions of packages than Headrace's environment has"
        if "onflict" in said or "ResolutionImpossible" in said
        else ""
    )
    raise LoadError(f"the model's dependencies ({wanted}) cannot be installed{hint}. pip: {said}")
