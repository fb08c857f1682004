"""Commands that change a running server: `apply`, `diff`, `rollout promote | abort | back`,
`scale`, `freeze`, `adapter`, `stop`; on this machine, on a Ray cluster or through gateways
(`Where`).

Every function returns the exit code. All raise NoServer, ServerRefused, ClusterError or
OperatorRefused; those that read a file, SettingsErrors, or of an adapter LoadError.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

import click

from deployments.control.plan import BY_HAND, STILL_IN_FILE, Deployment
from deployments.control.supervisor import orphaned_processes, server_files
from deployments.control.supervisor.server_files import NoServer, ServerState, state_folder
from deployments.settings import remote_source
from deployments.settings.model_fields import adapter_name_complaint
from deployments.settings.plain import dump, settings_digest
from deployments.settings_files import sources
from deployments.tools import operator
from deployments.tools.watching import called, wait_for_all
from deployments.tools.where import ServerRefused, Where
from runtimes import adapter_files
from runtimes.errors import LoadError

_BESIDE_FILE = "that stays so when a file is applied, and ends with the cluster"
_STOP_S = 86_400.0
_BACK_S = 3600.0  # the driver takes back a version that is not ready in its own time before


def apply(path: Path, where: Where, *, wait: bool) -> int:
    """Make the server's models those of a file, and print what that does. `wait`: until they run
    and its rollouts are over."""
    settings = where.settings(path)
    cluster = where.cluster()
    _say_later(cluster.waiting_for_restart(settings))
    with where.audited("apply", str(path.absolute()), settings_digest(dump(settings))):
        done = cluster.deploy(settings, settles=not wait)
    _say_deployment(done)
    return wait_for_all(cluster, settings, done, where) if wait else 0


def diff(path: Path, where: Where) -> int:
    """Print what `apply` would do, and why."""
    settings, cluster = where.settings(path), where.cluster()
    _say_later(cluster.waiting_for_restart(settings))
    _say_deployment(cluster.diff(settings))
    return 0


def promote(model: str, where: Where) -> int:
    """Promote the model's canary at once."""
    with where.audited("promote", f"rollout of {model}"):
        where.cluster().decide(model)
    click.echo(f"{model}: the new version replaces the live one")
    return 0


def abort(model: str, reason: str, where: Where) -> int:
    """Abort the model's rollout."""
    with where.audited("abort", f"rollout of {model}{reason and f': {reason}'}"):
        where.cluster().decide(model, reason or BY_HAND)
    click.echo(f"{model}: the new version gets no more requests and ends; the live one goes on")
    click.echo(STILL_IN_FILE)
    return 0


def back(model: str, where: Where) -> int:
    """Replace the model's version by the one before it."""
    cluster = where.cluster()
    with where.audited("rollout back", f"model {model}"):
        done, left = cluster.back(model)
    failed = cluster.watch(done, _BACK_S, lambda line: click.echo(line, err=True))
    for why in failed.values():
        click.echo(f"the previous version of {model} cannot start: {why}", err=True)
    if failed:
        return 1
    click.echo(f"{model}: the previous version runs again; {left} earlier ones are still known")
    return 0


def freeze(frozen: bool, where: Where) -> int:
    """Freeze the controllers of all models, or let them learn again."""
    if where.url is not None:
        operator.freeze(frozen, where.url)
    else:
        with where.audited("freeze", f"controllers: {'frozen' if frozen else 'free'}"):
            where.cluster().freeze(frozen)
    click.echo(f"controllers: {'frozen' if frozen else 'no longer frozen'}")
    return 0


def scale(model: str, group: str, replicas: int | None, where: Where) -> int:
    """Set a model's number of replicas by hand. It holds until `auto`, also when the autoscaler
    restarts or a settings file is applied."""
    what = f"{model}, group {group}" if group else model
    with where.audited("scale", f"{what}: {'auto' if replicas is None else replicas}"):
        where.cluster().scale(model, group, replicas)
    if replicas is None:
        click.echo(f"{what}: as many replicas as its policy decides")
    else:
        until = f"headrace scale {model} auto{group and f' --group {group}'}"
        click.echo(f"{what}: {replicas} replicas, until `{until}`")
    return 0


def list_adapters(model: str, where: Where) -> int:
    """Print a model's adapters, and which of them were given by hand."""
    for name, (source, by_hand) in sorted(where.cluster().adapters(model).items()):
        click.echo(f"{model}:{name}  {source}{'  (by hand)' if by_hand else ''}")
    return 0


def add_adapter(model: str, name: str, source: str, where: Where) -> int:
    """Add an adapter to a model that runs, or give it another source. Raises LoadError for one that
    is on this machine and wrong."""
    if wrong := adapter_name_complaint(name):
        raise LoadError(f"{name!r} {wrong}")
    here = where.address is None
    if here:
        source = sources.absolute(source, Path.cwd())
    if wrong := sources.check(source, here=here):
        raise LoadError(wrong)
    if here and not remote_source.is_remote(source):
        adapter_files.check(sources.resolve(source), None)
    with where.audited("adapter add", f"{model}:{name}", source):
        where.cluster().adapt(model, name, source)
    click.echo(f"{model}:{name} can be asked for in some seconds; {_BESIDE_FILE}")
    return 0


def remove_adapter(model: str, name: str, where: Where) -> int:
    """Take an adapter out of a model that runs."""
    with where.audited("adapter remove", f"{model}:{name}"):
        where.cluster().adapt(model, name, None)
    click.echo(f"{model}:{name} is unknown in some seconds; {_BESIDE_FILE}")
    return 0


# ---- stop ---------------------------------------------------------------------------------------


def stop(where: Where) -> int:
    """Let the server finish what it has, end it and wait for that; here also end processes that a
    killed server left. On a cluster: delete Headrace's applications."""
    if where.address is None:
        return _stop_here(where.port)
    with where.audited("stop", "all applications"):
        where.cluster().remove(lambda line: click.echo(line, err=True))
    click.echo("Headrace's applications are deleted from the cluster")
    return 0


def _stop_here(port: int | None) -> int:
    folder = state_folder()
    try:
        state = server_files.find(port, folder)
    except NoServer:
        several_run = port is None and any(state.alive for state in server_files.listing(folder))
        if several_run or not _clear_orphans(port, folder):
            raise
        return 0
    process = state.server.process()
    if process is not None:
        process.send_signal(signal.SIGTERM)
    _wait(state)
    _clear_orphans(state.port, folder)  # of a host that was killed meanwhile
    click.echo(f"stopped the server on port {state.port}")
    return 0


def _clear_orphans(port: int | None, folder: Path) -> int:
    """End the processes that dead servers left, on one port or on all, with a line for each server.
    Returns how many servers had left some. Raises ServerRefused if a process does not end."""
    known = server_files.listing(folder) if port is None else server_files.known(port, folder)
    dead = [state for state in known if not state.alive]
    try:
        sentences = [s for state in dead if (s := orphaned_processes.clear(state, folder))]
    except TimeoutError as error:
        raise ServerRefused(str(error)) from None
    for sentence in sentences:
        click.echo(sentence, err=True)
    return len(sentences)


def _wait(state: ServerState) -> None:
    end = time.monotonic() + _STOP_S
    began = reported = time.monotonic()
    while state.alive and time.monotonic() < end:
        time.sleep(0.1)
        if time.monotonic() - reported > 5:
            reported = time.monotonic()
            click.echo(f"draining ({reported - began:.0f} s)", err=True)


# ---- what is printed ----------------------------------------------------------------------------


def _say_reasons(reasons: Sequence[str]) -> None:
    for reason in reasons:
        click.echo(f"  {reason}")


def _say_later(names: list[str]) -> None:
    for name in names:
        click.echo(
            f"{name} takes effect only when Serve starts again (`serve shutdown`, then apply)",
            err=True,
        )


def _say_deployment(done: Deployment) -> None:
    for name, why in done.ended.items():
        click.echo(f"{name}: rollout ended ({why})")
    for each in done.differences:
        click.echo(f"{called(each.application)}: {each.kind}")
        _say_reasons(each.reasons)
    for name in done.begun:
        click.echo(f"{name}: rollout begins")
    for name in done.kept:
        click.echo(f"{name}: its rollout goes on")
    if not (done.differences or done.kept):
        click.echo("nothing changed")
