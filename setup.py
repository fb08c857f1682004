"""Builds the package; with HEADRACE_COMPILE=1 its scheduling core as C, by mypyc (the `compiler`
extra; docs/decisions/0036-the-core-may-be-compiled.md).

Left as Python: settings and snapshots (compiled dataclasses forget what their tuples hold, so that
nothing can be converted into them, and frozen ones cannot be pickled), and the simulator, which is
not on a request's way. All else is in pyproject.toml.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

_NOT_COMPILED = ("settings", "snapshot")
_INTERPRETED = (
    "__init__.py", "routers/simulation/", *(f"api/{each}.py" for each in _NOT_COMPILED),
)  # fmt: skip
# A processor that multiplies and adds in one instruction rounds once where Python rounds twice.
_AS_PYTHON_ROUNDS = "-ffp-contract=off"
# Nobody calls into the library but Python: so functions in it call each other directly.
_ALL_HIDDEN = "-fvisibility=hidden"


def _extensions() -> list[Extension]:
    if os.environ.get("HEADRACE_COMPILE") != "1":
        return []
    from mypyc.build import mypycify

    files = [path.as_posix() for path in sorted(Path("routers").rglob("*.py"))]
    compiled = [path for path in files if not any(part in path for part in _INTERPRETED)]
    options = ["--config-file=", "--ignore-missing-imports"]
    extensions = mypycify([*options, *compiled], opt_level="2", debug_level="0")
    for each in extensions:
        each.extra_compile_args += [_AS_PYTHON_ROUNDS, _ALL_HIDDEN]
    return extensions


setup(ext_modules=_extensions())
