"""`headrace load smoke FILE`: checks that a server keeps its promises, for a nightly job.

Exit codes: 0 every promise is kept; 1 one is broken, or the run does not count; 2 a file is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from loadtests.client.protocols import PROTOCOLS
from loadtests.commands import play
from loadtests.commands.options import FILE, as_typed
from loadtests.results import promise_file
from loadtests.results.promise_file import PromiseFile, about_nobody
from loadtests.results.promises import judge
from loadtests.results.record import save
from loadtests.run import InvalidRunOptions, PreparedRun, RunOptions, prepare


@click.command(epilog="Example: headrace load smoke smoke.yaml")
@click.argument("file", type=FILE)
@click.option("--url", default="", help="The server, http://host:port, instead of the file's.")
@click.option("--json", "record_path", type=FILE, help="Write the record here.")
@click.option("--html", "page", type=FILE, help="Write the report here.")
@click.option("--quiet", is_flag=True, help="Show nothing while it goes on; print no tables.")
def smoke(file: Path, url: str, record_path: Path | None, page: Path | None, quiet: bool) -> None:
    """Play the scenario of FILE and say of each promise in it whether it was kept."""
    promised = promise_file.load(file)
    ready = _ready(file, promised, url)
    ready.check_slo()
    record = play.watched(ready, quiet=quiet)
    record.checks = judge(record, promised.promises)
    if record_path is not None:
        save(record, record_path)
    if not quiet:
        play.show(record)
        click.echo()
    for claim, said, held in record.checks:
        click.echo(f"{'kept  ' if held else 'BROKEN'}  {claim}: {said}")
    play.write_page(record, page)
    broken = not all(held for _, _, held in record.checks)
    sys.exit(play.verdict(record) or int(broken))


def _ready(file: Path, promised: PromiseFile, url: str) -> PreparedRun:
    """Raises InvalidRunOptions, and what `prepare` raises."""
    if not (url or promised.url):
        raise InvalidRunOptions(f"{file}: url: is missing, and so is --url")
    if promised.protocol not in PROTOCOLS:
        known = " or ".join(PROTOCOLS)
        raise InvalidRunOptions(f"{file}: protocol: is {promised.protocol}; must be {known}")
    ready = prepare(_asked(promised, url))
    tenants = [name for name, _ in ready.scenario.callers()]
    nobody = list(about_nobody(promised.promises, tenants, ready.edges))
    if nobody:
        raise InvalidRunOptions("\n".join(f"{file}: {each}" for each in nobody))
    return ready


def _asked(promised: PromiseFile, url: str) -> RunOptions:
    return RunOptions(
        scenario=Path(promised.scenario),
        url=url or promised.url,
        protocol=promised.protocol,
        adapter=promised.adapter,
        model=promised.model,
        slo_ms=promised.slo_ms,
        changes=promised.changes,
        processes=promised.processes,
        command=as_typed(),
    )
