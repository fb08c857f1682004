"""Commands that look at a running server: `status`, `rollout status`, and how `apply` waits.

Every function returns the exit code. All raise NoServer, ServerRefused, ClusterError or
OperatorRefused.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from deployments.contract.app_names import is_model_app, model_app, model_name
from deployments.tools.console import status_table
from deployments.tools.console.status_table import progress_key, rollout_line
from deployments.tools.where import Where

if TYPE_CHECKING:  # slow to import, and needed for a cluster alone
    from deployments.contract.rollout.account import RolloutRecord
    from deployments.control.plan import Deployment
    from deployments.control.remote_cluster import RemoteCluster
    from deployments.settings.tree import Settings

_LOOKS_S = 1.0
_OPTIONAL_S = 30.0  # that `apply` waits for optional models: only to say what became of them
_OPTIONAL_LOOKS_S = 0.5
_STARTS = ("added", "restarted")
_LAST_SEEN = (
    "as Ray Serve saw them last: it counts a process that was killed for some 20 s more, and one "
    "that is ready only at its next look"
)
_CANNOT = "{} is optional and cannot start: {}"
_AWAY_S = 120.0  # a dashboard whose head is restarted, amid the wait for a rollout
_INTERRUPTED = 130


def status(where: Where, *, as_json: bool) -> int:
    """Print models, replicas and queues; of a cluster, the states of its applications as Serve
    reports them: queues are known to gateways alone."""
    if where.address is not None:
        found = where.cluster().states()
        if as_json:
            click.echo(json.dumps({"applications": [asdict(state) for state in found]}))
            return 0
        for state in found:
            click.echo(str(state))
        click.echo(_LAST_SEEN if found else "no application of Headrace runs there")
        return 0
    snapshot: Any
    if where.url is None:
        snapshot = where.ask({"do": "status"})
    else:
        from deployments.tools import operator

        snapshot = operator.status(where.url)
    if as_json:
        click.echo(status_table.as_json(snapshot))
    else:
        status_table.show(snapshot)
    return 0


def rollouts(model: str | None, where: Where, *, as_json: bool) -> int:
    """Print the rollouts of a model, or of all models."""
    found = where.cluster().rollouts()
    if model is not None:
        found = [record for record in found if record["model"] == model]
    if as_json:
        click.echo(json.dumps({"rollouts": found}, indent=2))
        return 0
    for record in found:
        click.echo(rollout_line(record))
    if not found:
        click.echo(f"no rollout{'' if model is None else f' of {model}'} since the server started")
    return 0


# ---- waiting ------------------------------------------------------------------------------------


def _say_optional(waits: set[str], where: Where) -> None:
    """Say how the starts of these models end; of those that take long, where to look later."""
    end, seen = time.monotonic() + _OPTIONAL_S, set[str]()
    while waits and time.monotonic() < end:
        models = {model["name"]: model for model in where.ask({"do": "status"})["models"]}
        seen |= models.keys()
        for name in sorted(waits & models.keys()):
            found = models[name]
            if found["state"] in ("ready", "asleep", "failed"):
                waits.remove(name)
            if found["state"] == "failed":
                click.echo(_CANNOT.format(name, found["reason"]))
        waits -= seen - models.keys()  # removed meanwhile; one not yet seen is only just put
        time.sleep(_OPTIONAL_LOOKS_S)
    for name in sorted(waits):
        click.echo(
            f"{name} is optional and still starting after {_OPTIONAL_S:g} s; "
            "`headrace status` says how far it is"
        )


def called(application: str) -> str:
    """What a user calls an application: a model by its name."""
    return model_name(application) if is_model_app(application) else application


def wait_for_all(cluster: RemoteCluster, settings: Settings, done: Deployment, where: Where) -> int:
    """Wait until what was deployed runs and its rollouts are over. Optional models hold nothing
    up."""
    limit_s = max(m.replicas.start_timeout_s for m in settings.models.values())
    failed = cluster.watch(done, limit_s, lambda line: click.echo(line, err=True))
    kinds = {each.application: each.kind for each in done.differences}
    optional = {n for n, m in settings.models.items() if m.optional}
    for name in sorted(optional):
        if why := failed.pop(model_app(name), None):
            optional.remove(name)
            click.echo(_CANNOT.format(name, why))
    for name, why in failed.items():
        left = "was left out" if kinds.get(name) == "added" else "goes on as it was"
        what = f"model {called(name)}" if is_model_app(name) else name
        click.echo(f"{what} cannot start and {left}: {why}", err=True)
    if failed:
        click.echo("everything else is as the file says", err=True)
    if where.address is None:
        _say_optional({n for n in optional if kinds.get(model_app(n)) in _STARTS}, where)
    rollouts = {**done.begun, **done.kept}
    if not rollouts:
        return 1 if failed else 0
    return wait_for(rollouts, lambda: cluster.rollouts(_AWAY_S)) or (1 if failed else 0)


def wait_for(
    rollouts: Mapping[str, int],
    records: Callable[[], list[RolloutRecord]],
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Show these rollouts (model to number of the rollout), as `records` returns them, until all
    are over. Returns the exit code: 1 if one was aborted; 130 for Ctrl-C, which ends only the wait.
    """
    try:
        with _Display() as display:
            while True:
                found = {r["model"]: r for r in records() if r["model"] in rollouts}
                replaced = [n for n, number in rollouts.items() if _other(found.get(n), number)]
                if replaced:
                    break
                display.show(list(found.values()))
                if all(record["over"] for record in found.values()):
                    break
                pause(_LOOKS_S)
    except KeyboardInterrupt:
        models = ", ".join(rollouts)
        click.echo(
            f"no longer waiting; the rollout of {models} goes on: see `headrace rollout status`",
            err=True,
        )
        return _INTERRUPTED
    if replaced:
        click.echo(f"replaced by another rollout meanwhile: {', '.join(replaced)}", err=True)
        return 1
    return _outcome(found)


def _other(record: RolloutRecord | None, number: int) -> bool:
    return record is None or record["id"] != number


def _outcome(found: Mapping[str, RolloutRecord]) -> int:
    aborted = {name: r["why"] for name, r in found.items() if r["phase"] == "aborted"}
    for name, record in found.items():
        if name not in aborted:
            click.echo(
                f"{name}: promoted, after it answered {record['canary']['answered']} requests"
            )
    for name, why in aborted.items():
        click.echo(f"{name}: aborted, the live version goes on: {why}", err=True)
    if aborted:
        from deployments.control.plan import STILL_IN_FILE

        click.echo(STILL_IN_FILE, err=True)
    return 1 if aborted else 0


class _Display(contextlib.ExitStack):
    """Shows rollouts: on a terminal one line each, redrawn; elsewhere a new line for each step."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console(stderr=True)
        self._said: dict[str, tuple[str, int]] = {}
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = self.enter_context(Live(console=self._console, auto_refresh=False))

    def show(self, records: list[RolloutRecord]) -> None:
        if self._live is not None:
            text = Text("\n".join(rollout_line(record) for record in records))
            self._live.update(text, refresh=True)
            return
        for record in records:
            if self._said.get(record["model"]) != progress_key(record):
                self._said[record["model"]] = progress_key(record)
                click.echo(rollout_line(record), err=True)
