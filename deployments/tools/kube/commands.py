"""`headrace kube status | why | logs`: reads the release's objects once and prints the answer.

Each command returns its exit code, 0. `logs` returns 1 if no log at all could be read. Where the
cluster, the release or the target cannot be found, the KubernetesError makes the exit code 1.
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
    """Prints a table of the release's pods, or JSON. Raises KubernetesError."""
    from deployments.tools.kube import release_table

    snapshot = Kubernetes(context, namespace).snapshot(name)
    now = datetime.now(UTC)
    if as_json:
        click.echo(release_table.as_json(snapshot, release.rows(snapshot)))
    else:
        release_table.show(snapshot, release.rows(snapshot), now)
    return 0


def why(target: str | None, namespace: str | None, context: str | None, name: str | None) -> int:
    """Prints a paragraph for each pod and application that is not ready, and for the RayService.

    `target`: only this pod, group or model. Raises KubernetesError.
    """
    from deployments.tools.kube import release_table

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
    """Prints the logs of the pods of `target`: a pod, a group or a model.

    Raises KubernetesError.
    """
    api = Kubernetes(context, namespace)
    snapshot = api.snapshot(name)
    made, _ = _chosen(snapshot, target, release.rows(snapshot))
    pods = [pod for pod in snapshot.pods if pod["metadata"]["name"] in {row.pod for row in made}]
    if not pods:
        raise KubernetesError(f"{target} has no pods; `headrace kube why {target}` says why")
    had = merged(api, pods, options, click.echo, lambda said: click.echo(said, err=True))
    return int(not had)


def _chosen(
    snapshot: Snapshot, target: str, made: Sequence[Row]
) -> tuple[list[Row], Sequence[object]]:
    """The target's rows and applications. Raises KubernetesError if there is no such target."""
    found = applications(snapshot.service)
    chosen, models = release.concerning(target, made, found)
    if not chosen and not models:
        there = [*(each.model for each in found), *dict.fromkeys(row.group for row in made)]
        raise KubernetesError(
            f"{target} is no pod, model or group of this release; must be one of "
            f"{', '.join(dict.fromkeys(there))}, or a pod's name"
        )
    return chosen, models
