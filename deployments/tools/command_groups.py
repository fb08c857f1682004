"""The command line's groups, `headrace key`, `rollout`, `cluster` and `plan`: what their commands
are told.

The work is done elsewhere and imported when it is asked for, so that `--help` stays instant.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from deployments.tools.command_line import Duration, port_of_server
from deployments.tools.plan.commands import plan as plan

_FILE = click.Path(path_type=Path)
_LAYERS = click.Choice(["image", "node", "config"])


@click.group()
def key() -> None:
    """Keys of tenants and of operators (docs/security.md)."""


_url = click.option(
    "--url",
    metavar="URL",
    help="Of a server's gateways, with an operator's key in $HEADRACE_OPERATOR_KEY.",
)


@key.command()
@click.option("--tenant", metavar="NAME", help="Whose it will be.")
@click.option("--operator", is_flag=True, help="An operator's: it sees all, and runs no model.")
@click.option("--id", "key_id", metavar="ID", help="What it is called; unset, by its hash.")
@click.option("--expires", "lives_s", type=Duration(), help="It ends after: 12h, 90d.")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    help="Only for this model, or `model:adapter`; repeatable.",
)
@click.option("--file", type=_FILE, help="Write its hash into this settings or tenants file.")
def new(
    tenant: str | None,
    operator: bool,
    key_id: str | None,
    lives_s: int | None,
    models: tuple[str, ...],
    file: Path | None,
) -> None:
    """Make a key; its hash goes into the settings, the key to the tenant."""
    if operator and (tenant or models):
        raise click.UsageError("an operator's key is no tenant's and runs no model")
    if file is not None and not operator and tenant is None:
        raise click.UsageError("--file needs --tenant NAME or --operator: whose key is it?")
    from deployments.tools.keys import NewKey
    from deployments.tools.keys import new as make

    sys.exit(make(NewKey(tenant, operator, key_id, lives_s, models), file))


@key.command("list")
@click.argument("file", type=_FILE, required=False)
@port_of_server
@_url
def list_keys(file: Path | None, port: int | None, url: str | None) -> None:
    """Show all keys of FILE, or of a running server: whose they are, until when, their state."""
    from deployments.tools.keys import show

    sys.exit(show(file, port, url))


@key.command()
@click.argument("name", metavar="ID")
@click.option("--file", type=_FILE, help="Take it out of this settings or tenants file.")
@port_of_server
@_url
def revoke(name: str, file: Path | None, port: int | None, url: str | None) -> None:
    """End a key, by its id or hash: at a running server at once and for good.

    With --file it is taken out of that file, and a server is told where --port or --url names it.
    """
    if port is not None and url is not None:
        raise click.UsageError("--port and --url are two ways to a server; must be one of them")
    from deployments.tools.keys import revoke as end

    sys.exit(end(name, file, port, url))


@click.group()
def rollout() -> None:
    """New versions that take a model over step by step (docs/rollouts.md)."""


@rollout.command("status")
@click.argument("model", required=False)
@port_of_server
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
def rollout_status(model: str | None, port: int | None, as_json: bool) -> None:
    """Show rollouts: those under way, and the last one of each model."""
    from deployments.tools.rollout import status as show

    sys.exit(show(model, port, as_json=as_json))


@rollout.command()
@click.argument("model")
@port_of_server
def promote(model: str, port: int | None) -> None:
    """Put MODEL's new version in the live one's place now, whatever is still to be seen of it."""
    from deployments.tools.rollout import promote as decide

    sys.exit(decide(model, port))


@rollout.command()
@click.argument("model")
@click.option("--reason", default="", help="Why, for the audit log.")
@port_of_server
def abort(model: str, reason: str, port: int | None) -> None:
    """Take MODEL's new version away; the live one goes on as it is."""
    from deployments.tools.rollout import abort as decide

    sys.exit(decide(model, reason, port))


@click.command()
@click.argument("model")
@port_of_server
def rollback(model: str, port: int | None) -> None:
    """Put the version of MODEL that ran before the present one, at once.

    Each time one further back; a server knows the last five versions since it started.
    """
    from deployments.tools.rollout import rollback as back

    sys.exit(back(model, port))


@click.group()
def cluster() -> None:
    """Ray clusters of one node or many (docs/cluster.md), and what runs on Kubernetes."""


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


_namespace = click.option(
    "-n", "--namespace", metavar="NAMESPACE", help="The release's; unset, the context's own."
)
_context = click.option(
    "--context", metavar="CONTEXT", help="Of the kubeconfig; unset, its current."
)
_release = click.option(
    "--release", metavar="RELEASE", help="Which one, where the namespace has several."
)


@cluster.command()
@click.argument("release", required=False)
@_namespace
@_context
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def status(release: str | None, namespace: str | None, context: str | None, as_json: bool) -> None:
    """Show a release on Kubernetes: its pods, where they run, what each waits for.

    Reads with your kubeconfig; needs the extra `k8s` (docs/kubernetes.md).
    """
    from deployments.tools.kube.commands import status as show

    sys.exit(show(release, namespace, context, as_json=as_json))


@cluster.command()
@click.argument("target", required=False, metavar="[POD|GROUP|MODEL]")
@_namespace
@_context
@_release
def why(
    target: str | None, namespace: str | None, context: str | None, release: str | None
) -> None:
    """Say of each thing on Kubernetes that is not well what it waits for, and what would help."""
    from deployments.tools.kube.commands import why as explain

    sys.exit(explain(target, namespace, context, release))


@cluster.command()
@click.argument("target", metavar="MODEL|gateway|head|GROUP|POD")
@_namespace
@_context
@_release
@click.option("--since", type=Duration(), help="Only what is younger: 90s, 10m, 2h, 1d.")
@click.option("--tail", type=click.IntRange(1), help="Only so many last lines of each pod.")
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("-p", "--previous", is_flag=True, help="Of containers before their last restart.")
def logs(
    target: str, namespace: str | None, context: str | None, release: str | None, **options: Any
) -> None:
    """Print what the pods of a model, of gateways or of the head printed, merged, by pod.

    A model's pods are those of the groups that its replicas fit in.
    """
    from deployments.tools.kube.commands import logs as show
    from deployments.tools.kube.merged_logs import LogOptions

    since_s = options.pop("since")
    sys.exit(show(target, namespace, context, release, LogOptions(since_s=since_s, **options)))
