"""`headrace load goodput SCENARIO`: the highest rate that a server keeps its promise at."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from math import inf
from pathlib import Path

import click

from loadtests.commands.options import FILE, playing
from loadtests.goodput import LEAST, Search, search
from loadtests.goodput_trials import ScenarioTrials
from loadtests.results.record import Record
from loadtests.run import InvalidRunOptions, PreparedRun, RunOptions, prepare


@click.command(epilog="Example: headrace load goodput steady --url http://127.0.0.1:8000 --low 100")
@playing
@click.option("--low", type=float, required=True, help="Where to begin, requests a second.")
@click.option("--high", type=float, default=inf, help="No rate above it is tried.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--least", type=float, default=LEAST, show_default=True, help="Share in time.")
@click.option("--within", type=float, default=0.05, show_default=True, help="Of the interval.")
@click.option("--pause", "pause_s", type=float, default=2.0, help="Seconds between runs.")
@click.option("--json", "path", type=FILE, help="Write interval and runs here.")
def goodput(options: RunOptions, pause_s: float, path: Path | None, **bounds: float) -> None:
    """Search the rate of SCENARIO, everybody calling in proportion."""
    try:
        wanted = Search(**bounds)  # type: ignore[arg-type]
    except ValueError as error:
        raise InvalidRunOptions(str(error)) from None
    ready = prepare(options)
    if ready.slo_s is None and not ready.tokens:
        raise InvalidRunOptions(
            "--slo-ms is missing; neither it nor the settings file says a limit"
        )
    found = search(ScenarioTrials(ready, pause_s, tell).measure, wanted)
    click.echo(f"goodput {limits(ready)}: {found}")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        said = asdict(found) | {"fails": None if found.fails == inf else found.fails}
        slo_ms = None if ready.slo_s is None else ready.slo_s * 1e3
        path.write_text(json.dumps(said | {"slo_ms": slo_ms}, indent=1) + "\n")
    sys.exit(0 if found.holds else 1)


def limits(ready: PreparedRun) -> str:
    parts = [] if ready.slo_s is None else [f"within {ready.slo_s * 1e3:g} ms"]
    if ready.tokens:
        parts.append(f"with {ready.tokens.words()}")
    return " ".join(parts)


def tell(rate: float, record: Record) -> None:
    total = record.total()
    p99_s = total.latency.percentile_s(99) or 0.0
    share = total.in_slo / max(1, total.offered)
    click.echo(f"  {rate:10,.1f}/s  {share:7.2%} in time  p99 {p99_s * 1e3:,.1f} ms", err=True)
