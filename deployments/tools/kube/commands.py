"""`headrace cluster status | why | logs`: asks the Kubernetes API once, and prints the answer.

Exit codes: 0 if it was printed; 1 if the cluster, the release or the target cannot be found.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from deployments.tools.kube import release
from deployments.tools.kube.api import Kubernetes, KubernetesError
from deployments.tools.kube.applications import applications
from deployments.tools.kube.merged_logs import LogOptions, merged
from deployments.tools.kube.types import Row, Snapshot


def status(name: str | None, namespace: str | None, context: str | None, *, as_json: bool) -> int:
    """Prints the table. Raises KubernetesError."""
    from deployments.tools.console import release_table

    snapshot = Kubernetes(context, namespace).snapshot(name)
    now = datetime.now(UTC)
    if as_json:
        click.echo(release_table.as_json(snapshot, release.rows(snapshot)))
    else:
        release_table.show(snapshot, release.rows(snapshot), now)
    return 0


def why(target: str | None, namespace: str | None, context: str | None, name: str | None) -> int:
    """Prints a paragraph for each thing that is not well. Raises KubernetesError."""
    from deployments.tools.console import release_table

    snapshot = Kubernetes(context, namespace).snapshot(name)
    made, not_running = release.rows(snapshot), release.not_running(snapshot)
    service = release.service_cause(snapshot)
    if target is not None:
        made, found = _chosen(snapshot, target, made)
        not_running = [each for each in not_running if each in found]
        service = None
    release_table.explain(snapshot, service, not_running, made, datetime.now(UTC))
    return 0


def logs(
    target: str,
    namespace: str | None,
    context: str | None,
    name: str | None,
    options: LogOptions,
) -> int:
    """Prints the lines of all pods that `target` is. Raises KubernetesError."""
    api = Kubernetes(context, namespace)
    snapshot = api.snapshot(name)
    made, _ = _chosen(snapshot, target, release.rows(snapshot))
    pods = [pod for pod in snapshot.pods if pod["metadata"]["name"] in {row.pod for row in made}]
    if not pods:
        raise KubernetesError(f"{target} has no pods; `headrace cluster why {target}`")
    had = merged(api, pods, options, click.echo, lambda said: click.echo(said, err=True))
    return int(not had)


def _chosen(
    snapshot: Snapshot, target: str, made: Sequence[Row]
) -> tuple[list[Row], Sequence[object]]:
    """Raises KubernetesError for what is neither."""
    found = applications(snapshot.service)
    chosen, models = release.concerning(target, made, found)
    if not chosen and not models:
        there = [*(each.model for each in found), *dict.fromkeys(row.group for row in made)]
        raise KubernetesError(
            f"{target} is no pod, model or group of this release; must be one of "
            f"{', '.join(dict.fromkeys(there))}, or a pod's name"
        )
    return chosen, models
