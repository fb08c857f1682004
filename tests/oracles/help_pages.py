"""The help page of every command and sub-command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from deployments.cli import main
from loadtests.command import main as load


def pages() -> Mapping[str, bytes]:
    found = [*_below(main, ("headrace",)), *_below(load, ("headrace", "load"))]
    return {"help.txt": "\n".join(found).encode()}


def _below(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    context = click.Context(command, info_name=" ".join(path), terminal_width=100)
    yield f"$ {' '.join(path)} --help\n{command.get_help(context)}\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            each = command.get_command(context, name)
            if each is not None:
                yield from _below(each, (*path, name))
