"""`headrace load SCENARIO`: played once, kept as a record, shown as tables and as a page."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

import click

from loadtests.commands.options import FILE, playing
from loadtests.results.record import Record, save
from loadtests.run import PreparedRun, RunOptions, prepare

RUNS = Path("out/load")


@click.command(epilog="Example: headrace load play steady --url http://127.0.0.1:8000")
@playing
@click.option("--json", "record_path", type=FILE, help="Write the record here.")
@click.option("--record", "folder", type=FILE, default=RUNS, help="Or into this folder.")
@click.option("--html", "page", type=FILE, help="Write the report here.")
@click.option("--quiet", is_flag=True, help="Show nothing while it goes on; print no tables.")
def play(
    options: RunOptions, record_path: Path | None, folder: Path, page: Path | None, quiet: bool
) -> None:
    """Play SCENARIO to the server at --url, and keep a record of it."""
    ready = prepare(options)
    ready.check_slo()
    record = watched(ready, quiet=quiet)
    path = record_path or folder / f"{record.name}-{datetime.datetime.now():%Y%m%d-%H%M%S}.json"
    save(record, path)
    if not quiet:
        show(record)
    click.echo(f"record: {path}")
    write_page(record, page)
    sys.exit(verdict(record))


def watched(ready: PreparedRun, *, quiet: bool) -> Record:
    """Played, with a live view where there is a terminal."""
    if ready.left_out:
        names = ", ".join(ready.left_out)
        click.echo(f"not played, since they are the simulator's: {names}", err=True)
    if quiet:
        return ready.play()
    from loadtests.console.live import LiveView

    scenario = ready.scenario
    with LiveView(ready.options.scenario.stem, scenario.warmup_s, scenario.run_s) as view:
        return ready.play(view)


def show(record: Record) -> None:
    from loadtests.report import table

    click.echo("\n".join(table.lines(record)))


def write_page(record: Record, page: Path | None) -> None:
    """Where one is asked for; says where it is."""
    if page is not None:
        from loadtests.report import html

        html.write(record, page)
        click.echo(f"report: {page}")


def verdict(record: Record) -> int:
    """The exit code; what is wrong with the run is said."""
    if record.client.behind:
        click.echo(f"THIS RUN DOES NOT COUNT: {record.client.behind}", err=True)
        return 1
    if not record.total().latency.total:
        click.echo("nothing was answered", err=True)
        return 1
    return 0
