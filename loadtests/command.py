"""The command line: `headrace load SCENARIO --url URL`, also `python -m loadtests`.

A scenario's file in the place of a sub-command plays it. Each command translates its arguments,
calls one function and prints the outcome. Exit codes: 0 fine; 1 the run does not count, or nothing
was answered, or a promise was broken; 2 scenario, server, record or arguments are wrong.
"""

from __future__ import annotations

import datetime
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from loadtests.client.protocols import PROTOCOLS
from loadtests.client.protocols.types import WireError
from loadtests.results.record import Record, RecordError, save
from loadtests.run import Asked, AskedWrongly, Ready, prepare
from loadtests.traffic.scenario_file import ScenarioErrors
from loadtests.traffic.traces import TraceError
from loadtests.workers import WorkerLost

FILE = click.Path(path_type=Path)
RUNS = Path("out/load")
_MISTAKES = (ScenarioErrors, TraceError, WireError, AskedWrongly, RecordError)


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
        except _MISTAKES as error:
            click.echo(str(error), err=True)
            ctx.exit(2)
        except WorkerLost as error:
            click.echo(str(error), err=True)
            ctx.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Play a scenario to a running server and say what came of it.

    headrace load SCENARIO --url http://127.0.0.1:8000 is `play`; scenarios come with Headrace, in
    loadtests/scenarios.
    """


_OPTIONS = (
    click.argument("scenario", type=FILE),
    click.option("--url", required=True, help="The server, http://host:port."),
    click.option(
        "--protocol", type=click.Choice(list(PROTOCOLS)), default="oip", show_default=True,
        help="Open Inference Protocol in JSON or binary, OpenAI's, or one described by --adapter.",
    ),
    click.option("--adapter", default="", help="YAML of a `custom` protocol."),
    click.option("--model", default="", help="The model; unset, the scenario's."),
    click.option("--slo-ms", type=float, help="Latency limit, instead of the settings file's."),
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


def playing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what every command that plays a scenario is asked; it gets `asked`."""

    def translated(**given: Any) -> Any:
        own = {name: given.pop(name) for name in list(given) if name not in _NAMES}
        return command(asked=asked_of(**given), **own)

    translated.__name__, translated.__doc__ = command.__name__, command.__doc__
    translated.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(_OPTIONS):
        translated = option(translated)
    return translated


_NAMES = {
    "scenario", "url", "protocol", "adapter", "model", "slo_ms", "seed", "changes", "trace",
    "headers", "keys", "extra", "stream", "processes", "connections", "timeout_s",
}  # fmt: skip


def asked_of(**given: Any) -> Asked:
    """Raises AskedWrongly."""
    seed = given.pop("seed")
    changes = (*given.pop("changes"), *([f"seed={seed}"] if seed is not None else []))
    try:
        extra = json.loads(given.pop("extra"))
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise AskedWrongly("--extra must be a JSON object")
    return Asked(
        **given | {"headers": _pairs(given["headers"], ":"), "keys": _pairs(given["keys"], "=")},
        changes=changes,
        extra=extra,
        command=shlex.join(["headrace", "load", *sys.argv[sys.argv.index("load") + 1 :]])
        if "load" in sys.argv
        else shlex.join(["python", "-m", "loadtests", *sys.argv[1:]]),
    )


def _pairs(given: tuple[str, ...], mark: str) -> dict[str, str]:
    found = {}
    for each in given:
        name, marked, value = each.partition(mark)
        if not marked or not name.strip():
            raise AskedWrongly(f"{each!r} must be name{mark}value")
        found[name.strip()] = value.strip()
    return found


@main.command()
@playing
@click.option("--json", "record_path", type=FILE, help="Write the record here.")
@click.option("--record", "folder", type=FILE, default=RUNS, help="Or into this folder.")
@click.option("--html", "page", type=FILE, help="Write the report here.")
@click.option("--quiet", is_flag=True, help="Show nothing while it goes on; print no tables.")
def play(
    asked: Asked, record_path: Path | None, folder: Path, page: Path | None, quiet: bool
) -> None:
    """Play SCENARIO to the server at --url, and keep a record of it."""
    ready = prepare(asked)
    record = watched(ready, quiet=quiet)
    path = record_path or folder / f"{record.name}-{datetime.datetime.now():%Y%m%d-%H%M%S}.json"
    save(record, path)
    if not quiet:
        show(record)
    click.echo(f"record: {path}")
    if page is not None:
        from loadtests.report import html

        html.write(record, page)
        click.echo(f"report: {page}")
    sys.exit(verdict(record))


def watched(ready: Ready, *, quiet: bool) -> Record:
    """Played, with a live view where there is a terminal."""
    if quiet:
        return ready.play()
    from loadtests.console.live import LiveView

    scenario = ready.scenario
    with LiveView(ready.asked.scenario.stem, scenario.warmup_s, scenario.run_s) as view:
        return ready.play(view)


def show(record: Record) -> None:
    from loadtests.report import table

    click.echo("\n".join(table.lines(record)))


def verdict(record: Record) -> int:
    """The exit code; what is wrong with the run is said."""
    if record.client.behind:
        click.echo(f"THIS RUN DOES NOT COUNT: {record.client.behind}", err=True)
        return 1
    if not record.total().latency.total:
        click.echo("nothing was answered", err=True)
        return 1
    return 0
