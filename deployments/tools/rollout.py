"""`headrace rollout status | promote | abort`, `rollback`, and `apply`, which waits for rollouts.

With `--address` they act on a cluster, over Serve's REST (`RemoteCluster`); otherwise on a server
of this machine, through its control socket. `rollback` needs a server of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from deployments.contract.rollout.account import RolloutRecord
from deployments.control.rollout_reasons import BY_HAND
from deployments.control.rollout_records import STILL_IN_FILE
from deployments.control.supervisor.server_files import find, state_folder
from deployments.tools import control, remote
from deployments.tools.console.rollout_lines import rollout_line
from deployments.tools.control import ask
from deployments.tools.rollout_wait import wait_for

_CHANGE_S = 900.0


@dataclass(frozen=True, slots=True)
class Where:
    """The server of this machine on a port, or the only one; or a cluster, by its address."""

    port: int | None = None
    address: str | None = None


def apply(path: Path, port: int | None, *, wait: bool) -> int:
    """`control.apply`; with `wait`, until the rollouts that it began are over."""
    return control.apply(path, port, wait_on_server if wait else None)


def wait_on_server(rollouts: Mapping[str, int], port: int) -> int:
    """`wait_for` these rollouts of the server of this machine on this port."""
    return wait_for(rollouts, lambda: _records(port))


def status(model: str | None, where: Where, *, as_json: bool) -> int:
    """Print the rollouts of a model, or of all models. Raises NoServer, ServerRefused and
    ClusterError."""
    if where.address is not None:
        found = remote.cluster_at(where.address).rollouts()
    else:
        found = _records(find(where.port, state_folder()).port)
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


def promote(model: str, where: Where) -> int:
    """Promote the model's canary at once. Raises NoServer, ServerRefused and ClusterError."""
    if where.address is not None:
        remote.decide_rollout(model, where.address)
    else:
        ask(find(where.port, state_folder()).port, {"do": "promote", "model": model})
    click.echo(f"{model}: the new version replaces the live one")
    return 0


def abort(model: str, reason: str, where: Where) -> int:
    """Abort the model's rollout. Raises NoServer, ServerRefused and ClusterError."""
    if where.address is not None:
        remote.decide_rollout(model, where.address, reason or BY_HAND)
    else:
        request = {"do": "abort", "model": model, "reason": reason}
        ask(find(where.port, state_folder()).port, request)
    click.echo(f"{model}: the new version gets no more requests and ends; the live one goes on")
    click.echo(STILL_IN_FILE)
    return 0


def rollback(model: str, port: int | None) -> int:
    """Replace the model's version by the one before it. Raises NoServer and ServerRefused."""
    request = {"do": "rollback", "model": model}
    done = ask(find(port, state_folder()).port, request, _CHANGE_S)
    click.echo(
        f"{model}: the previous version runs again; {done['left']} earlier ones are still known"
    )
    for reason in done["reasons"]:
        click.echo(f"  {reason}")
    return 0


def _records(port: int) -> list[RolloutRecord]:
    found: list[RolloutRecord] = ask(port, {"do": "rollouts"})["rollouts"]
    return found
