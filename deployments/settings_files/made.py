"""Models that a script in `examples/` makes: the sources `made:NAME/inside`.

The script `examples/make_NAME.py` gets a folder to fill. The result is kept in the user's cache
folder, under the script's digest, so a changed script makes it again. A result is complete or
absent: one process of the machine makes it while the others wait. Only scripts of this package are
run; a name cannot lead anywhere else.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from runtimes import staging

_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
_SHOWN = 200


class CannotMake(Exception):
    """There is no such script, or it failed; the message says what to do."""


def cache_dir() -> Path:
    """The folder of this user's made and staged artifacts."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "headrace"


def folder(name: str) -> Path:
    """The folder that `examples/make_NAME.py` fills. Runs the script if the folder is missing.
    Raises CannotMake."""
    script = _script(name)
    digest = hashlib.sha256(script.read_bytes()).hexdigest()[:12]
    place = cache_dir() / "made" / f"{name}-{digest}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with staging.exclusive(place):
            if not place.is_dir():
                _make(name, place)
    return place


def _script(name: str) -> Path:
    spec = importlib.util.find_spec(f"examples.make_{name}") if _NAME.fullmatch(name) else None
    if spec is None or spec.origin is None:
        raise CannotMake(
            f"no script makes {name!r}; must be made:NAME, where examples/make_NAME.py exists"
        )
    return Path(spec.origin)


def _make(name: str, place: Path) -> None:
    from rich.console import Console

    for left in place.parent.glob(f"{place.name}.build-*"):  # by a process that was killed
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=f"{place.name}.build-", dir=place.parent) as made:
        inside = Path(made) / name
        # -P: modules in the user's folder must not be imported in place of this package's.
        command = [sys.executable, "-P", "-m", f"examples.make_{name}", str(inside)]
        with Console(stderr=True).status(f"making the example's model {name}, once"):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not inside.is_dir():
            said = (done.stderr.strip().splitlines() or ["it made nothing"])[-1]
            raise CannotMake(f"examples/make_{name}.py failed (`make dev` installs what it needs): "
                             f"{said[:_SHOWN]}")  # fmt: skip
        inside.rename(place)
