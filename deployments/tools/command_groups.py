"""The command line's groups, `headrace key`, `cluster` and `plan`: what their commands are told.

The work is done elsewhere and imported when it is asked for, so that `--help` stays instant.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from deployments.tools.plan.commands import plan as plan

_FILE = click.Path(path_type=Path)
_LAYERS = click.Choice(["image", "node", "config"])


@click.group()
def key() -> None:
    """Tenants' keys."""


@key.command()
def new() -> None:
    """Make a key; its hash goes into the settings, the key to the tenant."""
    from deployments.gateway.tenancy.tenants import new_key

    made, hashed = new_key()
    click.echo(f"key:  {made}   (give it to the tenant; it is not stored)")
    click.echo(f"hash: {hashed}   (put it under tenants.<name>.keys)")


@click.group()
def cluster() -> None:
    """Ray clusters of one node or many (docs/cluster.md)."""


@cluster.command()
@click.argument("file", type=_FILE, required=False)
@click.option(
    "--layer", "layers", multiple=True, type=_LAYERS, help="Only what this layer says; repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of shell.")
def env(file: Path | None, layers: tuple[str, ...], as_json: bool) -> None:
    """Print what must be exported on a node before `ray start`, for FILE's gateway.

    eval "$(headrace cluster env FILE)" && ray start …
    """
    from deployments.tools.cluster import env as show

    sys.exit(show(file, layers, as_json))


@cluster.command()
@click.argument("file", type=_FILE, required=False)
@click.option(
    "--address",
    metavar="URL",
    help="Of the cluster's dashboard; unset, $RAY_API_SERVER_ADDRESS or this machine's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def check(file: Path | None, address: str | None, as_json: bool) -> None:
    """Ask every node of a Ray cluster whether it can serve FILE; say what is wrong."""
    from deployments.tools.cluster import check as ask

    sys.exit(ask(file, address, as_json))
