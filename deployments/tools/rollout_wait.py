"""Waits for rollouts to end, and shows how far they are: for `headrace apply` and `deploy`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from deployments.contract.rollout.account import RolloutRecord
from deployments.control.rollout_records import STILL_IN_FILE
from deployments.tools.console.rollout_lines import progress_key, rollout_line

_LOOKS_S = 1.0
_INTERRUPTED = 130


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
