"""Shows a long command's progress in a terminal: one bar, and the present step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

Note = Callable[[str, float], None]
"""Is told the present step and the share that is done, 0..1."""


@contextmanager
def shown_progress(title: str) -> Iterator[Note]:
    """A bar on standard error, removed at the end; nothing if that is no terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("[bold]{task.description}"), BarColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[step]}", markup=False),
    )  # fmt: skip
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(title, total=1.0, step="")
        yield lambda step, share: progress.update(task, completed=share, step=step)
