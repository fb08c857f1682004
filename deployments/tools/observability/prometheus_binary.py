"""Where Prometheus and promtool are; `python -m deployments.tools.observability.prometheus_binary`
fetches them where they are not.

No package of PyPI has them, Debian's `prometheus` does: it is downloaded by apt and unpacked below
the environment's own folder, which takes no rights and starts no service. Looked for in what
$HEADRACE_PROMETHEUS names, or else there and in $PATH. Where there is no apt, or it may not, tests
that need them are skipped and say why.
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
    """There is none, and none could be fetched; says why and what to do."""


def found(name: str) -> Path | None:
    """`prometheus` or `promtool`."""
    named = os.environ.get(PLACE)
    folders = (
        [str(Path(named))] if named else [str(HOME / "usr" / "bin"), os.environ.get("PATH", "")]
    )
    path = shutil.which(name, path=os.pathsep.join(folders))
    return None if path is None else Path(path)


def needed(name: str) -> Path:
    """Raises NoPrometheus."""
    path = found(name)
    if path is None:
        raise NoPrometheus(
            f"there is no {name}: say `make prometheus`, which gets it from Debian's package; or "
            f"install it and name its folder in ${PLACE}"
        )
    return path


def fetch(into: Path = HOME) -> None:
    """Raises NoPrometheus."""
    missing = [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]
    if missing:
        raise NoPrometheus(f"there is no {missing[0]} here; install Prometheus 2.42 or newer")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done = _run(_DOWNLOAD, folder)
        if done.returncode:
            _run(["apt-get", "--quiet", "update"], folder)  # lists may be missing; takes root
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
    """Says where they are. Its failure is no reason to stop: who needs them says so again."""
    if found("promtool") is None or found("prometheus") is None:
        try:
            fetch()
        except (NoPrometheus, subprocess.TimeoutExpired) as error:
            print(f"NO PROMETHEUS: {error}\nIts tests are skipped.", file=sys.stderr)
            return 1
    print(f"{found('prometheus')}, {found('promtool')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
