"""Arguments and help of `headrace plan`.

Other modules do the work; they are imported when a command runs, so that `--help` is instant.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

_FILE = click.Path(path_type=Path)
GPU_NAMES = ("a100-40", "a100-80", "h100-80", "h200-141", "b200-180")


def _pairs(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """Parses a repeated option of the form `NAME=VALUE`."""
    found = {}
    for value in values:
        name, equals, right = value.partition("=")
        if not name or not equals or not right:
            raise click.BadParameter(f"{value!r} must be {param.metavar}", ctx, param)
        found[name] = right
    return found


def _mib(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, int]:
    found = {}
    for name, right in _pairs(ctx, param, values).items():
        if not right.isdecimal() or int(right) < 1:
            said = f"{right!r} must be a whole number of MiB, at least 1"
            raise click.BadParameter(said, ctx, param)
        found[name] = int(right)
    return found


@click.group()
def plan() -> None:
    """What to ask a cluster for."""


@plan.command(epilog="Example: headrace plan mig own.yaml --gpu h100-80")
@click.argument("file", type=_FILE)
@click.option("--gpu", type=click.Choice(GPU_NAMES), required=True, help="The GPUs' model.")
@click.option("--gpus", type=click.IntRange(0), help="How many there are; unset, what it takes.")
@click.option(
    "--per-node", type=click.IntRange(1), default=8, show_default=True, help="GPUs of a node."
)
@click.option(
    "--need", "need_mib", multiple=True, metavar="MODEL=MIB", callback=_mib,
    help="Memory that a replica was seen to take, all in; repeatable.",
)  # fmt: skip
@click.option(
    "--on", "profiles", multiple=True, metavar="MODEL=PROFILE", callback=_pairs,
    help="The slice to take, instead of the cheapest that holds it; repeatable.",
)  # fmt: skip
@click.option(
    "--usable", multiple=True, metavar="PROFILE=MIB", callback=_mib,
    help="A slice's memory as a node says (nvidia-smi mig -lgip); repeatable.",
)  # fmt: skip
@click.option(
    "--margin", type=click.FloatRange(0, 400), default=10.0, show_default=True,
    help="On top of what nobody measured, in %.",
)  # fmt: skip
@click.option("--surge", is_flag=True, help="Slices for what starts while a model changes, too.")
@click.option("--values", type=_FILE, help="The chart's values in force: their groups stay first.")
@click.option("--to", type=_FILE, help="Write values, layout and groups into this folder.")
@click.option("--json", "form", flag_value="json", help="Print JSON instead of tables.")
@click.option("--yaml", "form", flag_value="yaml", help="Print what would be written.")
def mig(file: Path, form: str | None, to: Path | None, margin: float, **options: Any) -> None:
    """Pack FILE's replicas onto MIG slices: who goes where, what is wasted, who has no place.

    MODEL may be MODEL/GROUP. Exit code 1: a replica has no place (docs/mig.md).
    """
    from deployments.tools.plan.mig import plan_mig
    from deployments.tools.plan.types import MigRequest

    request = MigRequest(margin=margin / 100, **options)
    sys.exit(plan_mig(file, request, form=form or "table", to=to))
