"""`headrace load compare A B`: two records beside each other, in tables and on a page."""

from __future__ import annotations

from pathlib import Path

import click

from loadtests.commands.options import FILE
from loadtests.report import compared
from loadtests.results import compare as comparison
from loadtests.results.record import load


@click.command(epilog="Example: headrace load compare before.json after.json")
@click.argument("a", type=FILE)
@click.argument("b", type=FILE)
@click.option("--html", "page", type=FILE, help="Write both runs' curves and tables here.")
def compare(a: Path, b: Path, page: Path | None) -> None:
    """Put the records A and B beside each other: what changed, and is it more than chance?"""
    found = comparison.compare(load(a), load(b))
    click.echo("\n".join(compared.lines(found)))
    if page is not None:
        compared.write(found, page)
        click.echo(f"report: {page}")
