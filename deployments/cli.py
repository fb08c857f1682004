"""The command line: `headrace serve | check | apply | status | simulate | profile | load | …`.

Each command translates its arguments, calls one function and prints the outcome; the work is done
elsewhere, imported only by the command that needs it, so that `--help` stays instant. Exit codes:
0 fine, 1 it did not work, 2 the settings or the arguments are wrong. What went wrong is one line;
for wrong arguments a second one names the help page.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deployments.process.loopback import authority, keep_loopback_direct
from deployments.tools.commands import (
    COMMANDS,
    FILE,
    Duration,
    ReplicaNumber,
    built_in_example,
    call,
    function,
    say_version,
)
from deployments.tools.user_folders import mended
from deployments.tools.where import PORT, Where, reaches

if TYPE_CHECKING:
    from deployments.settings.tree import Settings

_NO_FILES = "an operator's key applies no file; --address can, and --port on the server's machine"


class _Answering(click.Group):
    """Turns what a command may meet into a message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as wrong:
            at = (wrong.ctx or ctx).command_path
            click.echo(f"{wrong.format_message()}\nsee `{at} --help`", err=True)
            ctx.exit(wrong.exit_code)
        except Exception as error:
            code = _explained(error)
            if code is None:
                raise
            ctx.exit(code)


def _explained(error: Exception) -> int | None:
    """Prints a known error and gives its exit code; None for what nobody expected."""
    # Looked up rather than imported: only what a command has imported can have been raised.
    for module, name, code in (
        ("deployments.settings.plain", "SettingsErrors", 2),
        ("loadtests.traffic.scenario_file", "ScenarioErrors", 2),
        ("loadtests.traffic.traces", "TraceError", 2),
        ("deployments.tools.profile.lengths", "WrongArguments", 2),
        ("deployments.tools.profile.measure", "CannotProfile", 1),
        ("deployments.control.supervisor.server_files", "NoServer", 1),
        ("deployments.tools.where", "ServerRefused", 1),
        ("deployments.tools.operator", "OperatorRefused", 1),
        ("deployments.tools.keys", "CannotEdit", 1),
        ("deployments.tools.keys", "CannotRevoke", 1),
        ("deployments.control.dashboard", "ClusterError", 1),
        ("deployments.settings.reference", "CannotVerify", 2),
        ("runtimes.errors", "LoadError", 1),
    ):
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(error, getattr(loaded, name)):
            click.echo(str(error), err=True)
            return code
    return None


@click.group(cls=_Answering, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=say_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Serve many models behind one length-bucketing router."""
    keep_loopback_direct()
    try:
        for sentence in mended(os.environ):
            click.echo(sentence, err=True)
    except OSError as error:
        raise click.ClickException(str(error)) from None


@main.command(epilog="Example: headrace serve own.yaml --port 8001")
@click.argument("file", type=FILE, required=False)
@click.option("--port", type=PORT, help="Listen on this port instead of the file's.")
@click.option("--host", help="Listen on this address instead of the file's.")
def serve(file: Path | None, port: int | None, host: str | None) -> None:
    """Serve the models of FILE, in the foreground, until Ctrl-C or SIGTERM.

    Without FILE: the built-in example, sentence embeddings on this machine's CPU.
    """
    call("deployments.tools.serve", "serve", file or built_in_example(), port=port, host=host)


@main.command(epilog="Example: headrace check own.yaml")
@click.argument("file", type=FILE)
@click.option(
    "--elsewhere", is_flag=True, help="The models' files and packages are on another machine."
)
@click.option(
    "--fingerprint",
    metavar="MODEL",
    help="Show how MODEL's inputs are prepared; a stored fingerprint is compared at every start.",
)
@click.option(
    "--write", is_flag=True, help="Store the fingerprint beside the model, as preprocessing.json."
)
def check(file: Path, elsewhere: bool, fingerprint: str | None, write: bool) -> None:
    """Say what is wrong with FILE, and what would be right; what policies of scaling will do."""
    if fingerprint is not None:
        if elsewhere:
            raise click.UsageError("--fingerprint reads the model's files: not with --elsewhere")
        call("deployments.tools.verify.command", "fingerprint_of", file, fingerprint, write=write)
    if write:
        raise click.UsageError("--write stores a fingerprint: it needs --fingerprint MODEL")
    from deployments.settings_files.load import load

    settings = load(file, here=not elsewhere)
    click.echo(summary(settings))
    for lines in ("scaling_lines", "text_lines") if not elsewhere else ("scaling_lines",):
        for line in function("deployments.tools.init", lines)(settings):
            click.echo(line)


@main.command(epilog="Example: headrace build own.yaml > serve.yaml")
@click.argument("file", type=FILE)
def build(file: Path) -> None:
    """Print the Ray Serve applications that FILE means, as YAML.

    For whoever deploys them by other means: a RayService's serveConfigV2, `serve deploy`.
    """
    call("deployments.tools.cluster", "build", file)


@main.command(epilog="Example: headrace apply own.yaml --address http://HEAD:8265")
@click.argument("file", type=FILE)
@click.option("--no-wait", is_flag=True, help="Do not wait until models run and rollouts are over.")
@reaches(url=_NO_FILES)
def apply(file: Path, where: Where, no_wait: bool) -> None:
    """Make a running server's models those of FILE; models that stay the same are not touched.

    A changed model that has a `rollout` gets its requests step by step: waits until each is
    promoted (exit code 0) or aborted (1); Ctrl-C ends only the waiting (docs/rollouts.md).

    With --address: makes a Ray cluster serve FILE's models beside whatever else it serves. It needs
    Headrace on every node, and Ray's environment set before its start (docs/cluster.md).
    """
    call("deployments.tools.change", "apply", file, where, wait=not no_wait)


@main.command(epilog="Example: headrace diff own.yaml")
@click.argument("file", type=FILE)
@reaches(url=_NO_FILES)
def diff(file: Path, where: Where) -> None:
    """Say what applying FILE to a running server would restart, and why."""
    call("deployments.tools.change", "diff", file, where)


@main.command(epilog="Example: headrace status --json")
@reaches()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def status(where: Where, as_json: bool) -> None:
    """Show a running server's models, replicas and queues.

    With --address: what Ray Serve knows, which are the applications' states and replicas.
    """
    call("deployments.tools.watching", "status", where, as_json=as_json)


@main.command(epilog="Example: headrace freeze on")
@click.argument("switch", type=click.Choice(["on", "off"]))
@reaches()
def freeze(switch: str, where: Where) -> None:
    """Stop all that learns in a running server (on), or let it learn again (off).

    What has been learnt stays in force. Holds until the next `freeze`, or until an `apply`, which
    sets what its file says (controllers.frozen).
    """
    call("deployments.tools.change", "freeze", switch == "on", where)


@main.command(epilog="Example: headrace scale minilm 3")
@click.argument("model")
@click.argument("replicas", type=ReplicaNumber(), metavar="N|auto")
@click.option("--group", default="", help="Of a model that has groups: which one.")
@reaches(url="gateways set no numbers of replicas; --address can")
def scale(model: str, replicas: int | None, group: str, where: Where) -> None:
    """Give MODEL N replicas, whatever its policy says, until it is told `auto`.

    N lies within the model's bounds (replicas.min and max); 0 is none, where it may sleep.
    """
    call("deployments.tools.change", "scale", model, group, replicas, where)


@main.command(epilog="Example: headrace logs minilm --since 10m --follow")
@click.argument("model")
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option(
    "--since", "since_s", type=Duration(), help="Only lines younger than this: 90s, 10m, 2h, 1d."
)
@click.option("--tail", type=click.IntRange(1), help="Only the last lines.")
@reaches(url="gateways know no logs; --address can, and --port on the server's machine")
def logs(model: str, where: Where, **options: Any) -> None:
    """Print what a server wrote about MODEL; with --port also of a server that has ended.

    With --address: what MODEL's replicas wrote, each with its name before it.
    """
    from deployments.tools.logs import Wanted

    call("deployments.tools.logs", "show", model, where, Wanted(**options))


@main.command(epilog="Example: headrace why 3f2a9c0d5b7e41d8")
@click.argument("request_id", metavar="REQUEST_ID")
@reaches(url="gateways know no logs; --address can, and --port on the server's machine")
def why(request_id: str, where: Where) -> None:
    """Explain one request: why it waited, where it went, and how it ended.

    REQUEST_ID: its answer's header `x-request-id`. Needs `gateway.log.decisions: true` in the
    settings file while the request runs.
    """
    call("deployments.tools.logs", "why", request_id, where)


@main.command(epilog="Example: headrace init own.yaml")
@click.argument("path", type=FILE, default=Path("settings.yaml"))
def init(path: Path) -> None:
    """Write a settings file to start from, with comments; settings.yaml unless PATH names it."""
    call("deployments.tools.init", "init", path)


@main.command(epilog="Example: headrace completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes SHELL complete Headrace's commands, options and files."""
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(main, {}, "headrace", "_HEADRACE_COMPLETE").source())


@main.command(epilog="Example: headrace stop --port 8000")
@reaches(url="gateways end no server; --address can")
def stop(where: Where) -> None:
    """Let a running server finish what it has, and end it."""
    call("deployments.tools.change", "stop", where)


@main.command(epilog="Example: headrace simulate overload-2x --seed 1")
@click.argument("scenario", type=FILE)
@click.option("--trace", type=FILE, help="Replay this recording instead of the scenario's load.")
@click.option("--replicas", type=click.IntRange(0), help="Replicas, instead of the settings'.")
@click.option("--seed", type=int, help="Decides every random choice, instead of the scenario's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--fifo", is_flag=True, help="Run it also through one queue, first in, first out.")
@click.option(
    "--policy", "policies", multiple=True, metavar="KIND=NAME",
    help="Run it also with another policy (order=drr, admission=limit+codel, admission=none); "
    "repeatable, all of them at once.",
)  # fmt: skip
@click.option(
    "--set", "changes", multiple=True, metavar="PATH=VALUE",
    help="Change the scenario (arrivals.rate=300) or its settings (settings.models.…); repeatable.",
)  # fmt: skip
def simulate(scenario: Path, as_json: bool, **options: Any) -> None:
    """Run SCENARIO on virtual time: the real scheduling against modelled replicas.

    A bare name is one of the scenarios that come with Headrace (loadtests/scenarios).
    """
    from deployments.tools.simulate.simulation import SimulateOptions
    from loadtests.traffic.scenario_file import located

    call(
        "deployments.tools.simulate.command", "simulate", located(scenario),
        SimulateOptions(**options), as_json=as_json,
    )  # fmt: skip


@main.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def load(arguments: tuple[str, ...]) -> None:
    """Play a scenario to a running server and say what came of it (docs/load-tests.md)."""
    function("loadtests.command", "main")(list(arguments), prog_name="headrace load")


for command in COMMANDS:
    main.add_command(command)


def summary(settings: Settings) -> str:
    """One line for a file that is fine."""
    models, tenants = list(settings.models), list(settings.tenants)
    parts = [f"{_count(len(models), 'model')} ({', '.join(models)})"]
    if tenants:
        parts.append(f"{_count(len(tenants), 'tenant')} ({', '.join(tenants)})")
    parts.append(f"http://{authority(settings.gateway.host, settings.gateway.port)}")
    return "ok: " + ", ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


if __name__ == "__main__":
    main()
