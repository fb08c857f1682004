"""The command line: `headrace load SCENARIO --url URL`, also `python -m loadtests`.

With a scenario's file in place of a sub-command, the scenario is played. Exit codes: 0 success;
1 the run does not count, nothing was answered, or a promise was broken; 2 the scenario, server,
record or arguments are wrong.
"""

from __future__ import annotations

from typing import Any

import click

from loadtests.client.protocols.types import WireError
from loadtests.commands.compare import compare
from loadtests.commands.goodput import goodput
from loadtests.commands.mlperf import mlperf
from loadtests.commands.play import play
from loadtests.commands.smoke import smoke
from loadtests.commands.versus import versus
from loadtests.goodput_trials import GeneratorBehind
from loadtests.results.record import RecordError
from loadtests.run import InvalidRunOptions
from loadtests.traffic.scenario_file import ScenarioErrors
from loadtests.traffic.traces import TraceError
from loadtests.versus import NotSimulated
from loadtests.workers import WorkerLost

_MISTAKES = (ScenarioErrors, TraceError, WireError, InvalidRunOptions, RecordError, NotSimulated)
_FAILURES = (WorkerLost, GeneratorBehind)


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


for _command in (play, compare, goodput, mlperf, smoke, versus):
    main.add_command(_command)
