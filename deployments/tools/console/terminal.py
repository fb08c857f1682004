"""Shows the models' progress while `headrace serve` starts.

On a terminal, one line for each model, redrawn; elsewhere (logs, pipes), one line for each change
of phase, and one every few seconds of a phase that lasts. Phases are the replicas': staging,
compiling, verifying, warming, ready or failed. Elapsed seconds are measured here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

PHASES = (
    "starting", "installing", "staging", "compiling", "verifying", "warming", "profiling", "ready",
    "failed",
)  # fmt: skip
_EVERY_S = 5.0
_MEANS = {  # what a phase that lasts is about
    "installing": "pip installs its dependencies",
    "staging": "fetching and loading its files",
    "compiling": "the backend loads and compiles it",
    "verifying": "its answers are compared with the reference",
    "warming": "it runs each shape once",
    "profiling": "costs of batches are measured",
}


class ModelProgress:
    """One model's start: its present phase, since when, and how long each earlier phase took."""

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.phase = PHASES[0]
        self.fraction = 0.0
        self.note = ""
        self.since = self.started = self.told = now
        self.took: list[tuple[str, float]] = []

    @property
    def over(self) -> bool:
        return self.phase in ("ready", "failed")

    def move(self, phase: str, now: float) -> bool:
        """Enters `phase` if it is later than the present one; returns whether it was.

        A model's replicas share a line, so the replica that is furthest sets the phase.
        """
        if phase not in PHASES or self.over or PHASES.index(phase) <= PHASES.index(self.phase):
            return False
        self.took.append((self.phase, now - self.since))
        self.phase, self.since, self.fraction, self.note = phase, now, 0.0, ""
        return True

    def said(self) -> str:
        """The present phase in words."""
        share = f" {self.fraction:.0%}" if self.fraction else ""
        note = self.note or _MEANS.get(self.phase, "")
        return f"{self.phase}{share}" + (f": {note}" if note else "")


class StartupDisplay:
    """A context manager around the wait. `update` may be called from any thread, but only one."""

    def __init__(
        self,
        models: Iterable[str],
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._models = {name: ModelProgress(name, clock()) for name in models}
        self._live: Live | None = None
        self._over = threading.Event()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._table, console=self._console, refresh_per_second=8
            )
            self._live.__enter__()
        else:
            threading.Thread(target=self._tick_often, name="startup", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def _tick_often(self) -> None:
        while not self._over.wait(_EVERY_S / 5):
            self.tick()

    def tick(self) -> None:
        """Without a terminal: repeat the phases that have lasted since their last line, one line
        for all models of which the same is to be said."""
        now = self._clock()
        alike: dict[str, list[ModelProgress]] = {}
        for found in list(self._models.values()):
            if not found.over and now - found.told >= _EVERY_S:
                found.told = now
                alike.setdefault(found.said(), []).append(found)
        for said, models in alike.items():
            names = ", ".join(each.name for each in models)
            self._print(f"{names}: {said} ({now - models[0].started:.1f} s)")

    def server(self, message: str) -> None:
        """What the whole server does before models start."""
        for found in self._models.values():
            if found.phase == PHASES[0]:
                found.note = message

    def update(self, model: str, phase: str, fraction: float = 0.0, note: str = "") -> None:
        """Reports a model's phase and the share of it that is done (0 to 1).

        `note`: what failed, or why the phase lasts. A model that is not known yet is added.
        """
        now = self._clock()
        found = self._models.setdefault(model, ModelProgress(model, now))
        moved = found.move(phase, now)
        if phase == found.phase and not found.over:
            found.fraction = min(max(fraction, 0.0), 1.0)
        if note and phase == found.phase:
            found.note = note
        if moved and self._live is None:
            self._say(found, now)

    def _say(self, found: ModelProgress, now: float) -> None:
        note = f": {found.note}" if found.note else ""
        found.told = now
        self._print(f"{found.name}: {found.phase}{note} ({now - found.started:.1f} s)")

    def _print(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a full disk must not stop the start
            self._console.print(Text(line), soft_wrap=True)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        now = self._clock()
        for found in self._models.values():
            table.add_row(Text(found.name, style="bold"), _phases(found, now))
        return table


def _phases(found: ModelProgress, now: float) -> Text:
    text = Text()
    for phase, seconds in found.took:
        if phase != PHASES[0]:
            text.append(f"{phase} {seconds:.1f} s   ", style="dim")
    if found.phase == "ready":
        text.append(f"ready in {found.since - found.started:.1f} s", style="green")
    elif found.phase == "failed":
        text.append(f"failed: {found.note}", style="red")
    else:
        share = f" {found.fraction:.0%}" if found.fraction else ""
        note = f"   {found.note}" if found.note else ""
        text.append(f"{found.phase}{share} {now - found.since:.1f} s{note}", style="cyan")
    return text
