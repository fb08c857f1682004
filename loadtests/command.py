"""The command line: `headrace load SCENARIO --url URL`, also `python -m loadtests`.

With a scenario's file in place of a sub-command, the scenario is played. Exit codes: 0 success;
1 the run does not count, nothing was answered, or a promise was broken; 2 the scenario, server,
record or arguments are wrong. What only one sub-command needs and takes long to import (pages,
tables, the live view) is imported where it is used.
"""

from __future__ import annotations

import datetime
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

import click

from loadtests.client.protocols import PROTOCOLS
from loadtests.client.protocols.types import WireError
from loadtests.goodput import LEAST, GeneratorBehind, ScenarioTrials, Search, search
from loadtests.results import promises
from loadtests.results.promises import PromiseFile
from loadtests.results.record import Record, RecordError, load, save
from loadtests.run import InvalidRunOptions, PreparedRun, RunOptions, prepare
from loadtests.traffic.scenario_file import ScenarioErrors, located
from loadtests.traffic.traces import TraceError
from loadtests.workers import WorkerLost

RUNS = Path("out/load")
FILE = click.Path(path_type=Path)
_MISTAKES = (ScenarioErrors, TraceError, WireError, InvalidRunOptions, RecordError)
_FAILURES = (WorkerLost, GeneratorBehind)
_OPTIONS = (
    click.argument("scenario", type=FILE),
    click.option("--url", required=True, help="The server, http(s)://host:port."),
    click.option("--ca", type=FILE, help="PEM file of authorities to trust over https."),
    click.option(
        "--protocol", type=click.Choice(list(PROTOCOLS)), default="oip", show_default=True,
        help="Open Inference Protocol in JSON or binary, OpenAI's, or one described by --adapter.",
    ),
    click.option("--adapter", default="", help="YAML of a `custom` protocol."),
    click.option("--model", default="", help="The model; unset, the scenario's."),
    click.option("--slo-ms", type=float, help="Latency limit, not the settings' or server's."),
    click.option("--ttft-ms", type=float, help="Limit of the first token, as --slo-ms."),
    click.option("--tpot-ms", type=float, help="Limit of the mean time a further token takes."),
    click.option("--seed", type=int, help="Decides every random choice, not the scenario's."),
    click.option(
        "--set", "changes", multiple=True, metavar="PATH=VALUE",
        help="Change the scenario (arrivals.rate=300); repeatable.",
    ),
    click.option("--trace", type=FILE, help="Replay this recording instead of its load."),
    click.option("--header", "headers", multiple=True, help="'name: value'; repeatable."),
    click.option("--key", "keys", multiple=True, metavar="TENANT=KEY", help="Repeatable."),
    click.option("--extra", default="{}", help="JSON laid over each request's body."),
    click.option("--stream/--no-stream", default=True, help="Of completions and chat."),
    click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True),
    click.option("--connections", type=click.IntRange(1, 65_000), default=4096, show_default=True),
    click.option("--timeout", "timeout_s", type=float, default=30.0, help="Seconds a request."),
)  # fmt: skip
_NAMES = {
    "scenario", "url", "ca", "protocol", "adapter", "model", "slo_ms", "ttft_ms", "tpot_ms", "seed",
    "changes", "trace", "headers", "keys", "extra", "stream", "processes", "connections",
    "timeout_s",
}  # fmt: skip
_JSON = click.option("--json", "record_path", type=FILE, help="Write the record here.")
_HTML = click.option("--html", "page", type=FILE, help="Write the report here.")
_QUIET = click.option(
    "--quiet", is_flag=True, help="Show nothing while it goes on; print no tables."
)


class _Commands(click.Group):
    """`play` where the first argument is no command; what is wrong becomes a line and a code."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["play", *args]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (*_MISTAKES, *_FAILURES) as error:
            click.echo(str(error), err=True)
            ctx.exit(1 if isinstance(error, _FAILURES) else 2)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Play a scenario to a running server and say what came of it.

    headrace load SCENARIO --url http://127.0.0.1:8000 is `play`; scenarios come with Headrace, in
    loadtests/scenarios.
    """


# ---- the options of everything that plays a scenario ---------------------------------------------


def playing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what every command that plays a scenario takes; it gets them as `options`."""

    def translated(**given: Any) -> Any:
        own = {name: given.pop(name) for name in list(given) if name not in _NAMES}
        return command(options=options_of(**given), **own)

    translated.__name__, translated.__doc__ = command.__name__, command.__doc__
    translated.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(_OPTIONS):
        translated = option(translated)
    return translated


def options_of(**given: Any) -> RunOptions:
    """Raises InvalidRunOptions."""
    seed = given.pop("seed")
    changes = (*given.pop("changes"), *([f"seed={seed}"] if seed is not None else []))
    try:
        extra = json.loads(given.pop("extra"))
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise InvalidRunOptions("--extra must be a JSON object")
    given["headers"] = _pairs(given["headers"], ":")
    given["keys"] = _pairs(given["keys"], "=")
    given["ca"] = str(given["ca"] or "")
    given["scenario"] = located(given["scenario"])
    return RunOptions(**given, changes=changes, extra=extra, command=as_typed())


def _pairs(given: tuple[str, ...], mark: str) -> dict[str, str]:
    found = {}
    for each in given:
        name, marked, value = each.partition(mark)
        if not marked or not name.strip():
            raise InvalidRunOptions(f"{each!r} must be name{mark}value")
        found[name.strip()] = value.strip()
    return found


def as_typed() -> str:
    """The command line of this process, for the record."""
    if "load" in sys.argv:
        return shlex.join(["headrace", "load", *sys.argv[sys.argv.index("load") + 1 :]])
    return shlex.join(["python", "-m", "loadtests", *sys.argv[1:]])


# ---- playing a scenario --------------------------------------------------------------------------


@main.command(epilog="Example: headrace load play steady --url http://127.0.0.1:8000")
@playing
@_JSON
@click.option("--record", "folder", type=FILE, default=RUNS, help="Or into this folder.")
@_HTML
@_QUIET
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
    from loadtests.live_view import LiveView

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


# ---- two records ---------------------------------------------------------------------------------


@main.command(epilog="Example: headrace load compare before.json after.json")
@click.argument("a", type=FILE)
@click.argument("b", type=FILE)
@click.option("--html", "page", type=FILE, help="Write both runs' curves and tables here.")
def compare(a: Path, b: Path, page: Path | None) -> None:
    """Put the records A and B beside each other: what changed, and is it more than chance?"""
    from loadtests.report import compared
    from loadtests.results import compare as comparison

    found = comparison.compare(load(a), load(b))
    click.echo("\n".join(compared.lines(found)))
    if page is not None:
        compared.write(found, page)
        click.echo(f"report: {page}")


# ---- the highest rate, promises ------------------------------------------------------------------


@main.command(epilog="Example: headrace load goodput steady --url http://127.0.0.1:8000 --low 100")
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
    ready = _with_slo(options)
    found = search(ScenarioTrials(ready, pause_s, tell).measure, wanted)
    slo_ms = None if ready.slo_s is None else ready.slo_s * 1e3
    limits = [] if slo_ms is None else [f"within {slo_ms:g} ms"]
    limits += [f"with {ready.tokens.words()}"] if ready.tokens else []
    click.echo(f"goodput {' '.join(limits)}: {found}")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        said = asdict(found) | {"fails": None if found.fails == inf else found.fails}
        path.write_text(json.dumps(said | {"slo_ms": slo_ms}, indent=1) + "\n")
    sys.exit(0 if found.holds else 1)


def _with_slo(options: RunOptions) -> PreparedRun:
    """Raises InvalidRunOptions."""
    ready = prepare(options)
    if ready.slo_s is None and not ready.tokens:
        raise InvalidRunOptions(
            "--slo-ms is missing; neither it nor the settings file says a limit"
        )
    return ready


def tell(rate: float, record: Record) -> None:
    total = record.total()
    p99_s = total.latency.percentile_s(99) or 0.0
    share = total.in_slo / max(1, total.offered)
    click.echo(f"  {rate:10,.1f}/s  {share:7.2%} in time  p99 {p99_s * 1e3:,.1f} ms", err=True)


@main.command(epilog="Example: headrace load smoke smoke.yaml")
@click.argument("file", type=FILE)
@click.option("--url", default="", help="The server, http://host:port, instead of the file's.")
@_JSON
@_HTML
@_QUIET
def smoke(file: Path, url: str, record_path: Path | None, page: Path | None, quiet: bool) -> None:
    """Play the scenario of FILE and say of each promise in it whether it was kept."""
    promised = promises.load_file(file)
    ready = _promising(file, promised, url)
    ready.check_slo()
    record = watched(ready, quiet=quiet)
    record.checks = promises.judge(record, promised.promises)
    if record_path is not None:
        save(record, record_path)
    if not quiet:
        show(record)
        click.echo()
    for claim, said, held in record.checks:
        click.echo(f"{'kept  ' if held else 'BROKEN'}  {claim}: {said}")
    write_page(record, page)
    broken = not all(held for _, _, held in record.checks)
    sys.exit(verdict(record) or int(broken))


def _promising(file: Path, promised: PromiseFile, url: str) -> PreparedRun:
    """Raises InvalidRunOptions, and what `prepare` raises."""
    if not (url or promised.url):
        raise InvalidRunOptions(f"{file}: url: is missing, and so is --url")
    if promised.protocol not in PROTOCOLS:
        known = " or ".join(PROTOCOLS)
        raise InvalidRunOptions(f"{file}: protocol: is {promised.protocol}; must be {known}")
    ready = prepare(
        RunOptions(
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
    )
    tenants = [name for name, _ in ready.scenario.callers()]
    nobody = list(promises.about_nobody(promised.promises, tenants, ready.edges))
    if nobody:
        raise InvalidRunOptions("\n".join(f"{file}: {each}" for each in nobody))
    return ready
