"""What the files of the command line share: how arguments are written, and how work is called."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import click

FILE = click.Path(path_type=Path)
PORT = click.IntRange(1, 65_535)
port_of_server = click.option(
    "--port", type=PORT, help="The server's port; needed only when several run here."
)
address_of_cluster = click.option(
    "--address",
    metavar="URL",
    help="Of a Ray cluster's dashboard (http://HEAD:8265): that cluster, not a server started "
    "here. Its token is $RAY_AUTH_TOKEN.",
)


class Replicas(click.ParamType[int | None]):
    """A number of replicas, or `auto`, which is None."""

    name = "N|auto"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | None:
        if value == "auto":
            return None
        if not (isinstance(value, int) or str(value).isdecimal()):
            self.fail(f"{value!r} is no number of replicas; must be 0 or more, or auto", param, ctx)
        return int(value)


class Duration(click.ParamType[int]):
    """`90s`, `10m`, `2h` or `1d`, in seconds; a bare number is seconds."""

    name = "DURATION"
    _UNITS: ClassVar = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        number, unit = (value[:-1], value[-1:]) if value[-1:] in self._UNITS else (value, "s")
        if not (number.isdecimal() and int(number) > 0):
            self.fail(f"{value!r} is no time; must be like 90s, 10m, 2h or 1d", param, ctx)
        return int(number) * self._UNITS[unit]


def function(module: str, name: str) -> Callable[..., Any]:
    """Imported now, not before: whoever asks for `--help` waits for no import."""
    from importlib import import_module

    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def call(module: str, name: str, *args: Any, **kwargs: Any) -> None:
    """Calls a function that gives an exit code, and exits with it."""
    sys.exit(function(module, name)(*args, **kwargs))


def say_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Of the package, and how its scheduling core was installed: as Python or as C."""
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
    """`minilm.yaml` as it was installed."""
    from importlib.resources import files

    return Path(str(files("examples").joinpath("minilm.yaml")))
