"""Shows a long command's progress in a terminal: one bar, and the present step.

Nothing is shown where the output is no terminal. Each subclass chooses the columns beside its bar.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn


class ProgressBar:
    """A context manager around the work, which calls `update` as it goes on.

    `total`: the value of `completed` at the end. `fields`: initial values of the columns' fields.
    """

    def __init__(
        self,
        title: str,
        columns: tuple[ProgressColumn, ...],
        console: Console,
        total: float = 1.0,
        **fields: Any,
    ) -> None:
        self._progress = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._progress.add_task(title, total=total, **fields)

    def update(self, completed: float, **fields: Any) -> None:
        self._progress.update(self._task, completed=completed, **fields)

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.__exit__(kind, error, trace)


class ShareBar(ProgressBar):
    """Called with the name of the present step and the share that is done, 0..1."""

    def __init__(self, title: str, console: Console) -> None:
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[what]}", markup=False),
        )
        super().__init__(title, columns, console, what="")

    def __call__(self, what: str, share: float) -> None:
        self.update(share, what=what)


class SimulatedTimeBar(ProgressBar):
    """Called with virtual seconds and the number of requests so far."""

    def __init__(self, run_s: float, console: Console) -> None:
        columns = (
            TextColumn("simulated {task.completed:.0f} of {task.total:.0f} s"),
            BarColumn(),
            TextColumn("{task.fields[requests]:,} requests"),
            TimeElapsedColumn(),
        )
        super().__init__("", columns, console, run_s, requests=0)

    def __call__(self, now: float, requests: int) -> None:
        self.update(now, requests=requests)
