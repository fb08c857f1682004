"""Finds the programs prometheus and promtool, or fetches them:
`python -m deployments.tools.observability.prometheus_binary`.

They are looked for in the folder that $HEADRACE_PROMETHEUS names; without it, in `HOME` and $PATH.
PyPI has no package with them, but Debian has (`prometheus`). apt downloads that package, which is
unpacked into `HOME`, below the Python environment; this needs no rights and starts no service.
Where apt is missing or fails, tests that need the programs are skipped and say why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PLACE = "HEADRACE_PROMETHEUS"
HOME = Path(sys.prefix) / "prometheus"
_DOWNLOAD = ("apt-get", "--quiet", "download", "prometheus")
_LIMIT_S = 300


class NoPrometheus(RuntimeError):
    """A program is missing or could not be fetched; the message says why and what to do."""


def found(name: str) -> Path | None:
    """The path of the program `name` (`prometheus` or `promtool`), or None."""
    named = os.environ.get(PLACE)
    folders = (
        [str(Path(named))] if named else [str(HOME / "usr" / "bin"), os.environ.get("PATH", "")]
    )
    path = shutil.which(name, path=os.pathsep.join(folders))
    return None if path is None else Path(path)


def needed(name: str) -> Path:
    """Like `found`, but raises NoPrometheus if the program is missing."""
    path = found(name)
    if path is None:
        raise NoPrometheus(
            f"{name} is not installed: run `make prometheus`, which gets it from Debian's package; "
            f"or install it and name its folder in ${PLACE}"
        )
    return path


def fetch(into: Path = HOME) -> None:
    """Downloads and unpacks Debian's package. Raises NoPrometheus."""
    missing = [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]
    if missing:
        raise NoPrometheus(f"{missing[0]} is not installed; install Prometheus 2.42 or newer")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done = _run(_DOWNLOAD, folder)
        if done.returncode:
            _run(["apt-get", "--quiet", "update"], folder)  # lists may be missing; needs root
            done = _run(_DOWNLOAD, folder)
        if done.returncode:
            raise NoPrometheus(f"`{' '.join(_DOWNLOAD)}` failed: {done.stderr.strip()}")
        (package,) = folder.glob("*.deb")
        into.mkdir(parents=True, exist_ok=True)
        done = _run(["dpkg-deb", "--extract", str(package), str(into)], folder)
        if done.returncode:
            raise NoPrometheus(f"`dpkg-deb --extract` failed: {done.stderr.strip()}")


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )


def main() -> int:
    """Prints where the programs are, after fetching them if necessary; returns the exit code.

    A failure need not stop a build: tests that need the programs are skipped and say so.
    """
    if found("promtool") is None or found("prometheus") is None:
        try:
            fetch()
        except (NoPrometheus, subprocess.TimeoutExpired) as error:
            print(f"NO PROMETHEUS: {error}\nTests that need it are skipped.", file=sys.stderr)
            return 1
    print(f"{found('prometheus')}, {found('promtool')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
