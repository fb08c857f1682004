"""`headrace rollout status | promote | abort`, `rollback`, and the wait of `apply` for rollouts.

All of them use the control socket of a server on this machine.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from deployments.cluster.rollout_records import STILL_IN_FILE
from deployments.cluster.server_files import find, state_folder
from deployments.contract.rollout.account import RolloutRecord
from deployments.tools import control
from deployments.tools.console.rollout_lines import progress_key, rollout_line
from deployments.tools.control import ask

_LOOKS_S = 1.0
_CHANGE_S = 900.0
_INTERRUPTED = 130


def apply(path: Path, port: int | None, *, wait: bool) -> int:
    """`control.apply`; with `wait`, until the rollouts that it began are over."""
    return control.apply(path, port, wait_for if wait else None)


def status(model: str | None, port: int | None, *, as_json: bool) -> int:
    """Print the rollouts of a model, or of all models. Raises NoServer and ServerRefused."""
    found = _records(find(port, state_folder()).port)
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


def promote(model: str, port: int | None) -> int:
    """Promote the model's canary at once. Raises NoServer and ServerRefused."""
    ask(find(port, state_folder()).port, {"do": "promote", "model": model})
    click.echo(f"{model}: the new version replaces the live one")
    return 0


def abort(model: str, reason: str, port: int | None) -> int:
    """Abort the model's rollout. Raises NoServer and ServerRefused."""
    ask(find(port, state_folder()).port, {"do": "abort", "model": model, "reason": reason})
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


def wait_for(
    rollouts: Mapping[str, int], port: int, pause: Callable[[float], None] = time.sleep
) -> int:
    """Show these rollouts (model to the host's number of the rollout) until all are over. Returns
    the exit code: 1 if one was aborted; 130 for Ctrl-C, which ends only the wait."""
    display = _Display()
    try:
        with display:
            while True:
                found = {r["model"]: r for r in _records(port) if r["model"] in rollouts}
                replaced = [n for n, number in rollouts.items() if _other(found.get(n), number)]
                if replaced:
                    click.echo(
                        f"replaced by another rollout meanwhile: {', '.join(replaced)}", err=True
                    )
                    return 1
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
        click.echo(STILL_IN_FILE, err=True)
    return 1 if aborted else 0


def _records(port: int) -> list[RolloutRecord]:
    found: list[RolloutRecord] = ask(port, {"do": "rollouts"})["rollouts"]
    return found


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
