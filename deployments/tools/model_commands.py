"""Arguments and help of the commands on models that need no server: `verify`, `record`, `profile`
and `stage`.

Other modules do the work; they are imported when a command runs, so that `--help` is instant.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from deployments.tools.command_line import FILE, call

_LIMIT = click.FloatRange(min=0)
_SHARE = click.FloatRange(0, 1)


@click.command(epilog="Example: headrace verify own.yaml iris --against torch")
@click.argument("file", type=FILE)
@click.argument("model")
@click.option("--against", metavar="RUNTIME[:PRECISION]", help="Reference; unset, see the docs.")
@click.option("--artifact", type=FILE, help="Artifact of the reference; unset, MODEL's own.")
@click.option("--samples", type=click.IntRange(200), help="Least number of rows to compare.")
@click.option("--samples-file", type=FILE, help="The rows: .jsonl, .npz or a recorded folder.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the random rows.")
@click.option("--max-abs", type=_LIMIT, help="Largest absolute error allowed.")
@click.option("--mean-abs", type=_LIMIT, help="Largest mean absolute error allowed.")
@click.option("--max-rel", type=_LIMIT, help="Largest relative error allowed.")
@click.option("--mean-rel", type=_LIMIT, help="Largest mean relative error allowed.")
@click.option("--cosine", type=click.FloatRange(-1, 1), help="Least cosine similarity of a row.")
@click.option("--top1", type=_SHARE, help="Least share of rows with the same best class.")
@click.option(
    "--layers", is_flag=True, help="Find the first tensor inside that drifts, and a remedy."
)
@click.option("--report", type=FILE, help="Write the report to this file (.md, else JSON).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def verify(file: Path, model: str, **options: Any) -> None:
    """Compare MODEL with a reference, length bucket by length bucket (docs/verify.md).

    Bounds left out are the model's `accept`, or 1e-3 of absolute and relative error.
    """
    from deployments.tools.verify.command import OutputOptions

    call(
        "deployments.tools.verify.command", "run", file, model, options,
        OutputOptions(options["report"], options["as_json"], options["layers"]),
    )  # fmt: skip


@click.command(epilog="Example: headrace record own.yaml iris --to recorded")
@click.argument("file", type=FILE)
@click.argument("model")
@click.option("--to", type=click.Path(path_type=Path), help="Folder for the joined files.")
def record(file: Path, model: str, to: Path | None) -> None:
    """Join what gateways recorded of MODEL (models.<name>.record), for calibration and replay."""
    call("deployments.tools.record", "show", file, model, to)


@click.command(epilog="Example: headrace stage own.yaml")
@click.argument("file", type=FILE)
@click.option(
    "--convert",
    is_flag=True,
    help="Also convert the files as backends do, by loading each model that needs no GPU.",
)
def stage(file: Path, convert: bool) -> None:
    """Bring the files of FILE's models to this node's cache, before a replica needs them.

    Files that are there are not fetched again; interrupted ones are resumed. It is safe to run
    while replicas start. Relative paths are below $HEADRACE_SOURCES, else beside FILE.
    """
    call("deployments.tools.stage", "stage", file, convert=convert)


@click.command(epilog="Example: headrace profile own.yaml minilm --compare torch,openvino")
@click.argument("file", type=FILE)
@click.argument("model", required=False)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 86_400),
    default=60.0,
    show_default=True,
    help="How long to measure, besides loading and warm-up.",
)
@click.option(
    "--lengths",
    type=FILE,
    help="Lengths of rows: one a line, a recording (.csv, .jsonl) or a scenario.",
)
@click.option(
    "--compare", metavar="RUNTIME[:PRECISION],…", help="Find the fastest backend instead."
)
@click.option("--dry-run", is_flag=True, help="Store nothing for serve.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--seed", type=int, default=0, help="Seed of every random choice.")
def profile(file: Path, compare: str | None, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Measure what MODEL's batches cost on this machine, and store the profile for serve.

    MODEL may be left out if FILE has only one.
    """
    from deployments.tools.profile.measure import ProfileOptions

    if options["seconds"] != options["seconds"]:
        raise click.BadParameter("is nan; must be a number of seconds", param_hint="--seconds")
    wanted, module = ProfileOptions(file, **options), "deployments.tools.profile"
    if compare is None:
        call(f"{module}.command", "profile", wanted, dry_run=dry_run, as_json=as_json)
    else:
        names = [name.strip() for name in compare.split(",")]
        call(f"{module}.compare", "compare", wanted, names, as_json=as_json)


COMMANDS = (verify, record, profile, stage)
