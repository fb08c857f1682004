"""Commands on a Ray cluster that runs already: `deploy`, and `diff`, `status`, `freeze` and `stop`
with `--address`. They use Serve's REST interface, and import no Ray.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

import click
import yaml

from deployments.control.dashboard import Dashboard, address_of, token_of
from deployments.control.remote_cluster import Deployment, RemoteCluster
from deployments.control.serve_config import serve_config
from deployments.control.serve_rest import ANSWER_S, ServeRest
from deployments.control.supervisor.server_files import commands_audit_file, state_folder
from deployments.process import audit
from deployments.process.audit import AuditLine
from deployments.settings.load import load, settings_digest
from deployments.settings.tree import Settings
from deployments.tools.rollout_wait import wait_for

_AWAY_S = 120.0  # a dashboard whose head is restarted, amid the wait for a rollout


def build(path: Path) -> int:
    """Print the Serve applications of a settings file as YAML. Raises SettingsErrors."""
    click.echo(yaml.safe_dump(serve_config(_portable(path)), sort_keys=False), nl=False)
    return 0


def deploy(path: Path, address: str | None, *, wait: bool) -> int:
    """Deploy a settings file to the cluster. `wait`: until its applications run and its rollouts
    are over. Returns the exit code: 1 if an application failed or a rollout was aborted. Raises
    SettingsErrors and ClusterError."""
    settings = _portable(path)
    config = serve_config(settings)
    cluster = cluster_at(address)
    _say_later(cluster.heard_later(config))
    with _audited("deploy", str(path), address, settings_digest(config)):
        done = cluster.deploy(settings)
    _say(done)
    return _waited(cluster, settings, done) if wait else 0


def _waited(cluster: RemoteCluster, settings: Settings, done: Deployment) -> int:
    """Wait for what was deployed. Returns the exit code."""
    limit_s = max(m.replicas.start_timeout_s for m in settings.models.values())
    failed = cluster.watch(done.names, limit_s, lambda line: click.echo(line, err=True))
    for state in failed:
        click.echo(f"{state.name} cannot start:\n{state.message}", err=True)
    rollouts = {**done.begun, **done.kept}
    if not rollouts:
        return 1 if failed else 0
    ended = wait_for(rollouts, lambda: cluster.rollouts(_AWAY_S))
    return ended or (1 if failed else 0)


def diff(path: Path, address: str) -> int:
    """Print what `deploy` would do, and why. Raises SettingsErrors and ClusterError."""
    cluster, settings = cluster_at(address), _portable(path)
    _say_later(cluster.heard_later(serve_config(settings)))
    _say(cluster.diff(settings))
    return 0


def decide_rollout(model: str, address: str, why: str = "") -> None:
    """Promote a model's rollout; with a reason, abort it. Raises ClusterError."""
    with _audited("abort" if why else "promote", f"rollout of {model}", address):
        cluster_at(address).decide(model, why)


def status(address: str, *, as_json: bool) -> int:
    """Print the states of Headrace's applications as Serve reports them. The state of queues is
    known to gateways alone (`--url`). Raises ClusterError."""
    found = cluster_at(address).states()
    if as_json:
        click.echo(json.dumps({"applications": [asdict(state) for state in found]}))
        return 0
    for state in found:
        click.echo(str(state))
    if not found:
        click.echo("no application of Headrace runs there")
    return 0


def freeze(frozen: bool, address: str) -> int:
    """Freeze the controllers of all models, or let them learn again. Raises ClusterError."""
    with _audited("freeze", f"controllers: {'frozen' if frozen else 'free'}", address):
        cluster_at(address).freeze(frozen)
    click.echo(f"controllers: {'frozen' if frozen else 'no longer frozen'}")
    return 0


def stop(address: str) -> int:
    """Drain Headrace's applications and delete them. Raises ClusterError."""
    with _audited("stop", "all applications", address):
        cluster_at(address).remove(lambda line: click.echo(line, err=True))
    click.echo("Headrace's applications are deleted from the cluster")
    return 0


def _audited(
    verb: str, what: str, address: str | None, after: str = ""
) -> AbstractContextManager[object]:
    """Write the command into this machine's audit log; the cluster's logs are its own."""
    line = AuditLine(audit.user(), verb, what, address_of(address), after=after)
    return audit.audited(line, commands_audit_file(state_folder()))


def cluster_at(address: str | None) -> RemoteCluster:
    """The cluster whose dashboard has this address; None: $RAY_API_SERVER_ADDRESS names it."""
    dashboard = Dashboard(address_of(address), token_of(), answer_s=ANSWER_S)
    return RemoteCluster(ServeRest(dashboard))


def _portable(path: Path) -> Settings:
    """The settings for other machines: the models' files are not looked for on this one."""
    return load(path, here=False, absolute=False)


def _say_later(names: list[str]) -> None:
    for name in names:
        click.echo(
            f"{name} takes effect only when Serve starts again (`serve shutdown`, then deploy)",
            err=True,
        )


def _say(done: Deployment) -> None:
    for name, why in done.ended.items():
        click.echo(f"{name}: rollout ended ({why})")
    for each in done.differences:
        click.echo(f"{each.application}: {each.kind}")
        for reason in each.reasons:
            click.echo(f"  {reason}")
    for name in done.begun:
        click.echo(f"{name}: rollout begins")
    for name in done.kept:
        click.echo(f"{name}: its rollout goes on")
    if not (done.differences or done.kept):
        click.echo("nothing changed")
