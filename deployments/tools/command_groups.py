"""Arguments and help of the command groups `headrace key`, `rollout`, `cluster`, `plan`.

Other modules do the work; they are imported when a command runs, so that `--help` is instant.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from deployments.tools.command_line import FILE, Duration, call
from deployments.tools.plan.commands import plan
from deployments.tools.where import Where, reaches

_LAYERS = click.Choice(["image", "node", "config"])


@click.group()
def key() -> None:
    """Keys of tenants and of operators (docs/security.md)."""


@key.command(epilog="Example: headrace key new own.yaml --tenant acme --id laptop --expires 90d")
@click.option("--tenant", metavar="NAME", help="The tenant that the key is for.")
@click.option(
    "--operator", is_flag=True, help="Make an operator's key: it sees all, and cannot run a model."
)
@click.option("--id", metavar="ID", help="Name of the key; unset, its hash's beginning.")
@click.option("--expires", "lives_s", type=Duration(), help="The key ends after: 12h, 90d.")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    help="The key is only for this model, or `model:adapter`; repeatable.",
)
@click.argument("file", type=FILE, required=False)
def new(file: Path | None, tenant: str | None, operator: bool, **options: Any) -> None:
    """Make a key. Its hash goes into the settings; the key itself goes to the tenant.

    FILE: write the hash into this settings or tenants file.
    """
    if operator and (tenant or options["models"]):
        raise click.UsageError("--operator cannot be combined with --tenant or --model")
    if file is not None and not operator and tenant is None:
        raise click.UsageError("FILE needs --tenant NAME or --operator, to say whose key it is")
    from deployments.tools.keys import NewKey

    call("deployments.tools.keys", "new", NewKey(tenant, operator, **options), file)


@key.command("list", epilog="Example: headrace key list --url http://GATEWAY:8000")
@click.argument("file", type=FILE, required=False)
@reaches()
def list_keys(file: Path | None, where: Where) -> None:
    """Show all keys of FILE, or of a running server: id, owner, state and expiry."""
    if file is not None and where != Where():
        raise click.UsageError("the keys are FILE's, or a server's; must be one of them")
    call("deployments.tools.keys", "show", file, where)


@key.command(epilog="Example: headrace key revoke laptop own.yaml")
@click.argument("name", metavar="ID")
@click.argument("file", type=FILE, required=False)
@reaches()
def revoke(name: str, file: Path | None, where: Where) -> None:
    """Revoke a key, by its id or hash: at a running server, at once and for good.

    With FILE the key is removed from that settings or tenants file, and a server is told only if
    --port or --url names one.
    """
    call("deployments.tools.keys", "revoke", name, file, where)


@click.group()
def rollout() -> None:
    """Rollouts: new versions that replace a model's live one step by step (docs/rollouts.md)."""


_NO_ROLLOUTS = "gateways decide no rollouts; --address can, and --port on the server's machine"


@rollout.command("status", epilog="Example: headrace rollout status minilm")
@click.argument("model", required=False)
@reaches(url=_NO_ROLLOUTS)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
def rollout_status(model: str | None, where: Where, as_json: bool) -> None:
    """Show rollouts: those under way, and the last one of each model.

    On a cluster their counts are of the beginning of the present step.
    """
    call("deployments.tools.watching", "rollouts", model, where, as_json=as_json)


@rollout.command(epilog="Example: headrace rollout promote minilm")
@click.argument("model")
@reaches(url=_NO_ROLLOUTS)
def promote(model: str, where: Where) -> None:
    """Let MODEL's new version replace the live one now, without its remaining steps."""
    call("deployments.tools.change", "promote", model, where)


@rollout.command(epilog='Example: headrace rollout abort minilm --reason "wrong answers"')
@click.argument("model")
@click.option("--reason", default="", help="Why, for the audit log.")
@reaches(url=_NO_ROLLOUTS)
def abort(model: str, reason: str, where: Where) -> None:
    """Remove MODEL's new version; the live version goes on unchanged."""
    call("deployments.tools.change", "abort", model, reason, where)


@rollout.command(epilog="Example: headrace rollout back minilm")
@click.argument("model")
@reaches(url=_NO_ROLLOUTS)
def back(model: str, where: Where) -> None:
    """Replace MODEL's version by the one that ran before it, at once.

    Each call goes one version further back. A server knows the last five since it started.
    """
    call("deployments.tools.change", "back", model, where)


@click.group()
def cluster() -> None:
    """Nodes of a Ray cluster: what they need, and whether they have it (docs/cluster.md)."""


@cluster.command(epilog='Example: eval "$(headrace cluster env own.yaml)" && ray start --head')
@click.argument("file", type=FILE, required=False)
@click.option(
    "--layer", "layers", multiple=True, type=_LAYERS, help="Only this layer's; repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of shell.")
def env(file: Path | None, layers: tuple[str, ...], as_json: bool) -> None:
    """Print the variables to export on a node before `ray start`, for FILE's gateway."""
    call("deployments.tools.cluster", "env", file, layers, as_json)


@cluster.command(epilog="Example: headrace cluster check own.yaml --address http://HEAD:8265")
@click.argument("file", type=FILE, required=False)
@click.option(
    "--address",
    metavar="URL",
    help="The cluster's dashboard; unset, $RAY_API_SERVER_ADDRESS or this machine's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def check(file: Path | None, address: str | None, as_json: bool) -> None:
    """Check whether every node of a Ray cluster can serve FILE; show what is wrong."""
    call("deployments.tools.cluster", "check", file, address, as_json)


GROUPS = (key, rollout, cluster, plan)
