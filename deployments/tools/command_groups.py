"""Arguments and help of the command groups `headrace key`, `rollout`, `cluster` and `plan`.

Other modules do the work; they are imported when a command runs, so that `--help` is instant.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from deployments.tools.command_line import Duration, address_of_cluster, port_of_server
from deployments.tools.plan.commands import plan as plan

_FILE = click.Path(path_type=Path)
_LAYERS = click.Choice(["image", "node", "config"])


@click.group()
def key() -> None:
    """Keys of tenants and of operators (docs/security.md)."""


_url = click.option(
    "--url",
    metavar="URL",
    help="Gateways of a running server; an operator's key is read from $HEADRACE_OPERATOR_KEY.",
)


@key.command()
@click.option("--tenant", metavar="NAME", help="The tenant that the key is for.")
@click.option(
    "--operator", is_flag=True, help="Make an operator's key: it sees all, and cannot run a model."
)
@click.option("--id", "key_id", metavar="ID", help="Name of the key; unset, its hash's beginning.")
@click.option("--expires", "lives_s", type=Duration(), help="The key ends after: 12h, 90d.")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    help="The key is only for this model, or `model:adapter`; repeatable.",
)
@click.option("--file", type=_FILE, help="Write the key's hash into this settings or tenants file.")
def new(
    tenant: str | None,
    operator: bool,
    key_id: str | None,
    lives_s: int | None,
    models: tuple[str, ...],
    file: Path | None,
) -> None:
    """Make a key. Its hash goes into the settings; the key itself goes to the tenant."""
    if operator and (tenant or models):
        raise click.UsageError("--operator cannot be combined with --tenant or --model")
    if file is not None and not operator and tenant is None:
        raise click.UsageError("--file needs --tenant NAME or --operator, to say whose key it is")
    from deployments.tools.keys import NewKey
    from deployments.tools.keys import new as make

    sys.exit(make(NewKey(tenant, operator, key_id, lives_s, models), file))


@key.command("list")
@click.argument("file", type=_FILE, required=False)
@port_of_server
@_url
def list_keys(file: Path | None, port: int | None, url: str | None) -> None:
    """Show all keys of FILE, or of a running server: id, owner, state and expiry."""
    from deployments.tools.keys import show

    sys.exit(show(file, port, url))


@key.command()
@click.argument("name", metavar="ID")
@click.option("--file", type=_FILE, help="Remove the key from this settings or tenants file.")
@port_of_server
@_url
def revoke(name: str, file: Path | None, port: int | None, url: str | None) -> None:
    """Revoke a key, by its id or hash: at a running server, at once and for good.

    With --file the key is removed from that file, and a server is told only if --port or --url
    names one.
    """
    if port is not None and url is not None:
        raise click.UsageError("--port and --url both name a server; must be one of them")
    from deployments.tools.keys import revoke as end

    sys.exit(end(name, file, port, url))


@click.group()
def rollout() -> None:
    """Rollouts: new versions that replace a model's live one step by step (docs/rollouts.md)."""


@rollout.command("status")
@click.argument("model", required=False)
@port_of_server
@address_of_cluster
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
def rollout_status(model: str | None, port: int | None, address: str | None, as_json: bool) -> None:
    """Show rollouts: those under way, and the last one of each model.

    On a cluster their counts are of the beginning of the present step.
    """
    from deployments.tools.rollout import status as show

    sys.exit(show(model, _where(port, address), as_json=as_json))


@rollout.command()
@click.argument("model")
@port_of_server
@address_of_cluster
def promote(model: str, port: int | None, address: str | None) -> None:
    """Let MODEL's new version replace the live one now, without its remaining steps."""
    from deployments.tools.rollout import promote as decide

    sys.exit(decide(model, _where(port, address)))


@rollout.command()
@click.argument("model")
@click.option("--reason", default="", help="Why, for the audit log.")
@port_of_server
@address_of_cluster
def abort(model: str, reason: str, port: int | None, address: str | None) -> None:
    """Remove MODEL's new version; the live version goes on unchanged."""
    from deployments.tools.rollout import abort as decide

    sys.exit(decide(model, reason, _where(port, address)))


def _where(port: int | None, address: str | None) -> Any:
    from deployments.tools.rollout import Where

    return Where(port, address)


@click.command()
@click.argument("model")
@port_of_server
def rollback(model: str, port: int | None) -> None:
    """Replace MODEL's version by the one that ran before it, at once.

    Each call goes one version further back. A server knows the last five since it started.
    """
    from deployments.tools.rollout import rollback as back

    sys.exit(back(model, port))


@click.group()
def cluster() -> None:
    """Ray clusters of one node or many (docs/cluster.md), and what runs on Kubernetes."""


@cluster.command()
@click.argument("file", type=_FILE, required=False)
@click.option(
    "--layer", "layers", multiple=True, type=_LAYERS, help="Only this layer's; repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of shell.")
def env(file: Path | None, layers: tuple[str, ...], as_json: bool) -> None:
    """Print the variables to export on a node before `ray start`, for FILE's gateway.

    eval "$(headrace cluster env FILE)" && ray start …
    """
    from deployments.tools.cluster import env as show

    sys.exit(show(file, layers, as_json))


@cluster.command()
@click.argument("file", type=_FILE, required=False)
@click.option(
    "--address",
    metavar="URL",
    help="The cluster's dashboard; unset, $RAY_API_SERVER_ADDRESS or this machine's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def check(file: Path | None, address: str | None, as_json: bool) -> None:
    """Check whether every node of a Ray cluster can serve FILE; show what is wrong."""
    from deployments.tools.cluster import check as ask

    sys.exit(ask(file, address, as_json))


_namespace = click.option(
    "-n", "--namespace", metavar="NAMESPACE", help="The release's namespace; unset, the context's."
)
_context = click.option(
    "--context", metavar="CONTEXT", help="Context of the kubeconfig; unset, its current one."
)
_release = click.option(
    "--release", metavar="RELEASE", help="The release, if the namespace has several."
)


@cluster.command()
@click.argument("release", required=False)
@_namespace
@_context
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def status(release: str | None, namespace: str | None, context: str | None, as_json: bool) -> None:
    """Show a release on Kubernetes: its pods, where they run, and what each waits for.

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
    """Explain what is not well on Kubernetes: what each thing waits for, and what would help."""
    from deployments.tools.kube.commands import why as explain

    sys.exit(explain(target, namespace, context, release))


@cluster.command()
@click.argument("target", metavar="MODEL|gateway|head|GROUP|POD")
@_namespace
@_context
@_release
@click.option("--since", type=Duration(), help="Only lines younger than this: 90s, 10m, 2h, 1d.")
@click.option("--tail", type=click.IntRange(1), help="Only the last lines of each pod.")
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option(
    "-p", "--previous", is_flag=True, help="Logs of containers before their last restart."
)
def logs(
    target: str, namespace: str | None, context: str | None, release: str | None, **options: Any
) -> None:
    """Print the logs of the pods of a model, of gateways or of the head, merged.

    A model's pods are those of the worker groups that its replicas fit in.
    """
    from deployments.tools.kube.commands import logs as show
    from deployments.tools.kube.merged_logs import LogOptions

    since_s = options.pop("since")
    sys.exit(show(target, namespace, context, release, LogOptions(since_s=since_s, **options)))
