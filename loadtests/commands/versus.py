"""`headrace load versus SCENARIO`: played to a server and simulated, side by side."""

from __future__ import annotations

import sys

import click

from loadtests.commands.options import playing
from loadtests.commands.play import verdict, watched
from loadtests.report.table import aligned
from loadtests.run import RunOptions, prepare
from loadtests.versus import side_by_side, simulated


@click.command(epilog="Example: headrace load versus steady --url http://127.0.0.1:8000")
@playing
def versus(options: RunOptions) -> None:
    """Play SCENARIO to the server at --url, simulate it, and print both."""
    ready = prepare(options)
    found = simulated(ready)
    record = watched(ready, quiet=False)
    for table in side_by_side(record, found):
        click.echo(f"\n{table.caption}\n")
        click.echo("\n".join(aligned(table)))
    sys.exit(verdict(record))
