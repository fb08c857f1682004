"""The command line: `headrace serve | check | apply | status | simulate | profile | load | …`.

Each command translates its arguments, calls one function and prints the outcome; the work is done
elsewhere, imported only by the command that needs it, so that `--help` stays instant. Exit codes:
0 fine, 1 it did not work, 2 the settings or the arguments are wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deployments.tools import command_groups

if TYPE_CHECKING:
    from deployments.settings.tree import Settings

FILE = click.Path(path_type=Path)
PORT = click.IntRange(1, 65_535)

_port_of_server = click.option(
    "--port", type=PORT, help="The server's port; needed only when several run here."
)
_address = click.option(
    "--address",
    metavar="URL",
    help="Of a Ray cluster's dashboard (http://HEAD:8265): that cluster, not a server started "
    "here. Its token is $RAY_AUTH_TOKEN.",
)
_url = click.option(
    "--url",
    metavar="URL",
    help="Of a server's gateways, with an operator's key in $HEADRACE_OPERATOR_KEY.",
)


class _Answering(click.Group):
    """Turns what a command may meet into a message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            code = _explained(error)
            if code is None:
                raise
            ctx.exit(code)


def _explained(error: Exception) -> int | None:
    """Prints a known error and gives its exit code; None for what nobody expected."""
    # Looked up rather than imported: only what a command has imported can have been raised.
    for module, name, code in (
        ("deployments.settings.load", "SettingsErrors", 2),
        ("loadtests.traffic.scenario_file", "ScenarioErrors", 2),
        ("loadtests.traffic.traces", "TraceError", 2),
        ("deployments.tools.simulate.plots", "NoPlots", 1),
        ("deployments.tools.profile.errors", "WrongArguments", 2),
        ("deployments.tools.profile.errors", "CannotProfile", 1),
        ("deployments.cluster.server_files", "NoServer", 1),
        ("deployments.tools.control", "ServerRefused", 1),
        ("deployments.tools.operator", "OperatorRefused", 1),
        ("deployments.cluster.dashboard", "ClusterError", 1),
        ("deployments.settings.reference", "CannotVerify", 2),
        ("runtimes.errors", "LoadError", 1),
    ):
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(error, getattr(loaded, name)):
            click.echo(str(error), err=True)
            return code
    return None


@click.group(cls=_Answering, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headrace", prog_name="headrace")
def main() -> None:
    """Serve many models behind one length-bucketing router."""


@main.command()
@click.argument("file", type=FILE, required=False)
@click.option("--port", type=PORT, help="Listen on this port instead of the file's.")
@click.option("--host", help="Listen on this address instead of the file's.")
def serve(file: Path | None, port: int | None, host: str | None) -> None:
    """Serve the models of FILE, in the foreground, until Ctrl-C or SIGTERM.

    Without FILE: the built-in example, sentence embeddings on this machine's CPU.
    """
    _call("deployments.tools.serve", "serve", file or built_in_example(), port=port, host=host)


@main.command()
@click.argument("file", type=FILE)
@click.option(
    "--elsewhere", is_flag=True, help="The models' files and packages are on another machine."
)
def check(file: Path, elsewhere: bool) -> None:
    """Say what is wrong with FILE, and what would be right."""
    from deployments.settings.load import load

    click.echo(summary(load(file, here=not elsewhere)))


@main.command()
@click.argument("file", type=FILE)
def build(file: Path) -> None:
    """Print the Ray Serve applications that FILE means, as YAML.

    For whoever deploys them by other means: a RayService's serveConfigV2, `serve deploy`.
    """
    _call("deployments.tools.remote", "build", file)


@main.command()
@click.argument("file", type=FILE)
@_address
@click.option("--no-wait", is_flag=True, help="Do not wait until everything runs.")
def deploy(file: Path, address: str | None, no_wait: bool) -> None:
    """Make a Ray cluster serve the models of FILE, beside whatever else it serves.

    The cluster needs Headrace installed on every node, and Ray's environment set before its start
    (docs/cluster.md).
    """
    _call("deployments.tools.remote", "deploy", file, address, wait=not no_wait)


@main.command()
@click.argument("file", type=FILE)
@_port_of_server
@_address
def apply(file: Path, port: int | None, address: str | None) -> None:
    """Make a running server's models those of FILE; models that stay the same are not touched."""
    if address is not None:
        _call("deployments.tools.remote", "deploy", file, address, wait=True)
    _call("deployments.tools.control", "apply", file, port)


@main.command()
@click.argument("file", type=FILE)
@_port_of_server
@_address
def diff(file: Path, port: int | None, address: str | None) -> None:
    """Say what applying FILE to a running server would restart, and why."""
    if address is not None:
        _call("deployments.tools.remote", "diff", file, address)
    _call("deployments.tools.control", "diff", file, port)


@main.command()
@_port_of_server
@_address
@_url
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def status(port: int | None, address: str | None, url: str | None, as_json: bool) -> None:
    """Show a running server's models, replicas and queues.

    With --address: what Ray Serve knows, which are the applications' states and replicas.
    """
    _one_of(address, url)
    if address is not None:
        _call("deployments.tools.remote", "status", address, as_json=as_json)
    if url is not None:
        snapshot = _function("deployments.tools.operator", "status")(url)
    else:
        snapshot = _function("deployments.tools.control", "status")(port)
    from deployments.tools.console import status_table

    if as_json:
        click.echo(status_table.as_json(snapshot))
    else:
        status_table.show(snapshot)


@main.command()
@click.argument("switch", type=click.Choice(["on", "off"]))
@_port_of_server
@_address
@_url
def freeze(switch: str, port: int | None, address: str | None, url: str | None) -> None:
    """Stop all that learns in a running server (on), or let it learn again (off).

    What has been learnt stays in force. Holds until the next `freeze`, or until an `apply`, which
    sets what its file says (controllers.frozen).
    """
    _one_of(address, url)
    if address is not None:
        _call("deployments.tools.remote", "freeze", switch == "on", address)
    if url is not None:
        _call("deployments.tools.operator", "freeze", switch == "on", url)
    _call("deployments.tools.control", "freeze", switch == "on", port)


@main.command()
@_port_of_server
@_address
def stop(port: int | None, address: str | None) -> None:
    """Let a running server finish what it has, and end it."""
    if address is not None:
        _call("deployments.tools.remote", "stop", address)
    _call("deployments.tools.control", "stop", port)


@main.command()
@click.argument("scenario", type=FILE)
@click.option("--trace", type=FILE, help="Replay this recording instead of the scenario's load.")
@click.option("--replicas", type=click.IntRange(0), help="Replicas, instead of the settings'.")
@click.option("--seed", type=int, help="Decides every random choice, instead of the scenario's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--plot", type=FILE, help="Draw the run on this page (.html).")
@click.option("--fifo", is_flag=True, help="Run it also through one queue, first in, first out.")
@click.option(
    "--set", "changes", multiple=True, metavar="PATH=VALUE",
    help="Change the scenario (arrivals.rate=300) or its settings (settings.models.…); repeatable.",
)  # fmt: skip
def simulate(scenario: Path, as_json: bool, plot: Path | None, **options: Any) -> None:
    """Run SCENARIO on virtual time: the real scheduling against modelled replicas.

    A bare name is one of the scenarios that come with Headrace (loadtests/scenarios).
    """
    from deployments.tools.simulate.simulation import SimulateOptions
    from loadtests.traffic.scenario_file import located

    _call(
        "deployments.tools.simulate.command", "simulate", located(scenario),
        SimulateOptions(**options), as_json=as_json, plot=plot,
    )  # fmt: skip


_LIMIT = click.FloatRange(min=0)
_SHARE = click.FloatRange(0, 1)
_file_of_model = click.option(
    "-f", "--file", type=FILE, help="Settings file that has MODEL; without it, the example's."
)


@main.command()
@click.argument("model")
@_file_of_model
@click.option("--against", metavar="RUNTIME[:PRECISION]", help="Reference; unset, see the docs.")
@click.option("--artifact", type=FILE, help="What the reference runs, instead of MODEL's own.")
@click.option("--samples", type=click.IntRange(200), help="Rows to compare at least.")
@click.option("--samples-file", type=FILE, help="Those rows: .jsonl, .npz or a recorded folder.")
@click.option("--seed", type=click.IntRange(0), help="Decides what is drawn.")
@click.option("--max-abs", type=_LIMIT, help="Largest absolute error allowed.")
@click.option("--mean-abs", type=_LIMIT, help="Largest mean absolute error allowed.")
@click.option("--max-rel", type=_LIMIT, help="Largest relative error allowed.")
@click.option("--mean-rel", type=_LIMIT, help="Largest mean relative error allowed.")
@click.option("--cosine", type=click.FloatRange(-1, 1), help="Least cosine of a row.")
@click.option("--top1", type=_SHARE, help="Least share of equal best classes.")
@click.option(
    "--layers", is_flag=True, help="Find the first tensor inside that drifts, and a cure."
)
@click.option("--report", type=FILE, help="Write the report there (.md, else JSON).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def verify(model: str, file: Path | None, **options: Any) -> None:
    """Compare MODEL with a reference, length bucket by length bucket (docs/verify.md).

    Bounds left out are the model's `accept`, or 1e-3 of absolute and relative error.
    """
    from deployments.tools.verify.command import Written

    _call(
        "deployments.tools.verify.command", "run", file or built_in_example(), model, options,
        Written(options["report"], options["as_json"], options["layers"]),
    )  # fmt: skip


@main.command()
@click.argument("model")
@_file_of_model
@click.option("--to", type=click.Path(path_type=Path), help="Folder for the joined files.")
def record(model: str, file: Path | None, to: Path | None) -> None:
    """Join what was recorded of MODEL (models.<name>.record), for calibration and replay."""
    _call("deployments.tools.record", "show", file or built_in_example(), model, to)


@main.command()
@click.argument("model")
@_file_of_model
@click.option("--write", is_flag=True, help="Store it beside the model, as preprocessing.json.")
def fingerprint(model: str, file: Path | None, write: bool) -> None:
    """Show what will be done to MODEL's inputs here; a stored one is compared at every start."""
    _call("deployments.tools.verify.stamp", "stamp", file or built_in_example(), model, write=write)


@main.command()
@click.argument("model", required=False)
@_file_of_model
@click.option(
    "--seconds",
    type=click.FloatRange(1, 86_400),
    default=60.0,
    show_default=True,
    help="How long to measure, beside loading and warm-up.",
)
@click.option(
    "--lengths",
    type=FILE,
    help="How long rows are: one length a line, a recording (.csv, .jsonl) or a scenario.",
)
@click.option(
    "--compare", metavar="RUNTIME[:PRECISION],…", help="Find the fastest backend instead."
)
@click.option("--dry-run", is_flag=True, help="Store nothing for serve.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--html", type=FILE, help="Write tables and pictures into this file.")
@click.option("--trace", type=FILE, help="Write a Chrome trace of every batch into this file.")
@click.option("--seed", type=int, default=0, help="Decides every random choice.")
def profile(
    model: str | None,
    file: Path | None,
    seconds: float,
    lengths: Path | None,
    seed: int,
    compare: str | None,
    **output: Any,
) -> None:
    """Measure what MODEL costs on this machine, and store what serve starts from.

    MODEL may be left out where the settings have only one.
    """
    from deployments.tools.profile.command import ProfileOutput
    from deployments.tools.profile.subject import ProfileOptions

    if seconds != seconds:
        raise click.BadParameter("nan is no number of seconds", param_hint="--seconds")
    options = ProfileOptions(file or built_in_example(), model, seconds, lengths, seed)
    if compare is None:
        _call("deployments.tools.profile.command", "profile", options, ProfileOutput(**output))
    else:
        names = [name.strip() for name in compare.split(",")]
        _call(
            "deployments.tools.profile.compare.command",
            "compare",
            options,
            names,
            ProfileOutput(**output),
        )


@main.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def load(arguments: tuple[str, ...]) -> None:
    """Play a scenario to a running server and say what came of it (docs/load-tests.md)."""
    _function("loadtests.command", "main")(list(arguments), prog_name="headrace load")


main.add_command(command_groups.key)
main.add_command(command_groups.cluster)
main.add_command(command_groups.plan)


def built_in_example() -> Path:
    """`minilm.yaml` as it was installed."""
    from importlib.resources import files

    return Path(str(files("examples").joinpath("minilm.yaml")))


def summary(settings: Settings) -> str:
    """One line for a file that is fine."""
    models, tenants = list(settings.models), list(settings.tenants)
    parts = [f"{_count(len(models), 'model')} ({', '.join(models)})"]
    if tenants:
        parts.append(f"{_count(len(tenants), 'tenant')} ({', '.join(tenants)})")
    parts.append(f"http://{settings.gateway.host}:{settings.gateway.port}")
    return "ok: " + ", ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _one_of(address: str | None, url: str | None) -> None:
    if address is not None and url is not None:
        raise click.UsageError("--address and --url are two ways to a server; must be one of them")


def _function(module: str, name: str) -> Callable[..., Any]:
    from importlib import import_module

    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def _call(module: str, name: str, *args: Any, **kwargs: Any) -> None:
    """Calls a function that gives an exit code, and exits with it."""
    sys.exit(_function(module, name)(*args, **kwargs))


if __name__ == "__main__":
    main()
