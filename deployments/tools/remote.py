"""The command line's way to a Ray cluster that it did not start: `deploy`, and `diff`, `status`,
`freeze` and `stop` with `--address`, over Serve's REST interface.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

import click
import yaml

from deployments.cluster.dashboard import Dashboard, address_of, token_of
from deployments.cluster.differences import Difference
from deployments.cluster.remote_cluster import RemoteCluster
from deployments.cluster.serve_config import serve_config
from deployments.cluster.serve_rest import ANSWER_S, ServeRest
from deployments.cluster.server_files import commands_audit_file, state_folder
from deployments.contract import audit
from deployments.contract.app_names import model_app
from deployments.contract.audit import AuditLine
from deployments.settings.load import load, settings_digest
from deployments.settings.tree import Settings

_DIGITS = 12  # of a digest


def build(path: Path) -> int:
    """Prints the applications of a settings file as YAML. Raises SettingsErrors."""
    click.echo(yaml.safe_dump(serve_config(_portable(path)), sort_keys=False), nl=False)
    return 0


def deploy(path: Path, address: str | None, *, wait: bool) -> int:
    """The exit code: 1 when an application failed. Raises SettingsErrors and ClusterError."""
    settings = _portable(path)
    config = serve_config(settings)
    cluster = _cluster(address)
    _say_later(cluster.heard_later(config))
    with _audited("deploy", str(path), address, settings_digest(config)):
        found = cluster.deploy(config)
        _say(found)
        _say_at_once(settings, found)
    if not wait:
        return 0
    limit_s = max(m.replicas.start_timeout_s for m in settings.models.values())
    failed = cluster.watch(config, limit_s, lambda line: click.echo(line, err=True))
    for state in failed:
        click.echo(f"{state.name} cannot start:\n{state.message}", err=True)
    return 1 if failed else 0


def diff(path: Path, address: str) -> int:
    """Says what `deploy` would do, and why. Raises SettingsErrors and ClusterError."""
    cluster, config = _cluster(address), serve_config(_portable(path))
    _say_later(cluster.heard_later(config))
    _say(cluster.differences(config))
    return 0


def status(address: str, *, as_json: bool) -> int:
    """What Serve says of our applications; what gateways know they say themselves."""
    found = _cluster(address).states()
    if as_json:
        click.echo(json.dumps({"applications": [asdict(state) for state in found]}))
        return 0
    for state in found:
        click.echo(str(state))
    if not found:
        click.echo("no application of Headrace runs there")
    return 0


def freeze(frozen: bool, address: str) -> int:
    """Raises ClusterError."""
    with _audited("freeze", f"controllers: {'frozen' if frozen else 'free'}", address):
        _cluster(address).freeze(frozen)
    click.echo(f"controllers: {'frozen' if frozen else 'no longer frozen'}")
    return 0


def stop(address: str) -> int:
    """Lets our applications finish what they have, and deletes them. Raises ClusterError."""
    with _audited("stop", "all applications", address):
        _cluster(address).remove(lambda line: click.echo(line, err=True))
    click.echo("Headrace's applications are gone from the cluster")
    return 0


def _audited(
    verb: str, what: str, address: str | None, after: str = ""
) -> AbstractContextManager[object]:
    """On this machine; what the cluster itself says of it stands in its own logs."""
    line = AuditLine(audit.user(), verb, what, address_of(address), after=after[:_DIGITS])
    return audit.audited(line, commands_audit_file(state_folder()))


def _cluster(address: str | None) -> RemoteCluster:
    dashboard = Dashboard(address_of(address), token_of(), answer_s=ANSWER_S)
    return RemoteCluster(ServeRest(dashboard))


def _portable(path: Path) -> Settings:
    """For machines that are not this one: files are looked for there."""
    return load(path, here=False, absolute=False)


def _say_later(names: list[str]) -> None:
    for name in names:
        click.echo(f"{name} is heard only when Serve starts (`serve shutdown`)", err=True)


def _say_at_once(settings: Settings, found: list[Difference]) -> None:
    """Of models that would be rolled out by `apply` on one machine."""
    restarted = {each.application for each in found if each.kind == "restarted"}
    names = [n for n, m in settings.models.items() if m.rollout and model_app(n) in restarted]
    if names:
        click.echo(
            f"{', '.join(names)}: changed at once; on a cluster nothing carries out a `rollout` "
            "(docs/rollouts.md)",
            err=True,
        )


def _say(found: list[Difference]) -> None:
    for each in found:
        click.echo(f"{each.application}: {each.kind}")
        for reason in each.reasons:
            click.echo(f"  {reason}")
    if not found:
        click.echo("nothing changed")
