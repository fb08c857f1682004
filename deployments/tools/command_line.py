"""What the modules of the command line share: types of arguments, and calls of a command's work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import click

FILE = click.Path(path_type=Path)
PORT = click.IntRange(1, 65_535)


class Replicas(click.ParamType[int | None]):
    """A number of replicas, or `auto`, which is None."""

    name = "N|auto"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | None:
        if value == "auto":
            return None
        if not (isinstance(value, int) or str(value).isdecimal()):
            self.fail(
                f"{value!r} is not a number of replicas; must be 0 or more, or auto", param, ctx
            )
        return int(value)


class Duration(click.ParamType[int]):
    """`90s`, `10m`, `2h` or `1d`, in seconds; a bare number is seconds."""

    name = "DURATION"
    _UNITS: ClassVar = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        number, unit = (value[:-1], value[-1:]) if value[-1:] in self._UNITS else (value, "s")
        if not (number.isdecimal() and int(number) > 0):
            self.fail(f"{value!r} is not a duration; must be like 90s, 10m, 2h or 1d", param, ctx)
        return int(number) * self._UNITS[unit]


def function(module: str, name: str) -> Callable[..., Any]:
    """The named function. Its module is imported now, not earlier, so that `--help` is instant."""
    from importlib import import_module

    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def call(module: str, name: str, *args: Any, **kwargs: Any) -> None:
    """Call a function that returns an exit code, and exit with that code."""
    sys.exit(function(module, name)(*args, **kwargs))


def say_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Print the package's version, and whether its scheduling core is interpreted or compiled."""
    if not is_asked or context.resilient_parsing:
        return
    from importlib.metadata import version
    from importlib.util import find_spec

    spec = find_spec("routers.core.dispatcher")
    is_python = spec is None or str(spec.origin).endswith(".py")
    core = "interpreted" if is_python else "compiled"
    click.echo(f"headrace, version {version('headrace')}, core {core}")
    context.exit()


def built_in_example() -> Path:
    """The path of the installed `minilm.yaml`, the default settings file."""
    from importlib.resources import files

    return Path(str(files("examples").joinpath("minilm.yaml")))
