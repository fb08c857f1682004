"""`headrace load mlperf SCENARIO --scenario server`: MLPerf Inference's rules on its lengths."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from loadtests.commands.options import FILE, playing
from loadtests.commands.play import show, verdict, watched
from loadtests.mlperf import RULES, checks, scenario_of
from loadtests.results.record import save
from loadtests.run import InvalidRunOptions, RunOptions, prepare


@click.command(
    epilog="Example: headrace load mlperf steady --url http://127.0.0.1:8000 --scenario server"
)
@playing
@click.option("--scenario", "kind", type=click.Choice(list(RULES)), required=True)
@click.option("--rate", type=float, default=0.0, help="Queries a second of `server`.")
@click.option("--clients", type=click.IntRange(1), default=256, help="At once, of `offline`.")
@click.option("--json", "path", type=FILE, help="Write the record here.")
def mlperf(options: RunOptions, kind: str, rate: float, clients: int, path: Path | None) -> None:
    """Play an MLPerf load with SCENARIO's lengths and duration, and judge it by MLPerf's rules."""
    if (kind == "server") != (rate > 0):
        raise InvalidRunOptions("--scenario server and --rate N belong together")
    ready = prepare(options)
    if kind == "server" and ready.slo_s is None:
        raise InvalidRunOptions(
            "--slo-ms is missing; neither it nor the settings file says a limit"
        )
    ready = replace(ready, scenario=scenario_of(kind, ready.scenario, rate, clients))
    record = watched(ready, quiet=False)
    record.name = f"{record.name}, MLPerf {kind}"
    record.checks = checks(kind, record, ready.slo_s)
    if path is not None:
        save(record, path)
    show(record)
    sys.exit(verdict(record) or (0 if all(held for _, _, held in record.checks) else 1))
