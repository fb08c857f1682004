"""The live view of a run: progress, rate, percentiles, what is not answered, by tenant.

Drawn by the process that watches, never by one that sends, on standard error; where that is no
terminal nothing is drawn. Percentiles are of the run so far, warm-up excluded.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadtests.results.record import TenantLengthStats, merged
from loadtests.workers import Glimpse

_BAR = 40
_MAX_TENANTS = 20


class LiveView:
    """A context manager around a run; called with the processes' last glimpses."""

    def __init__(
        self, title: str, warmup_s: float, run_s: float, console: Console | None = None
    ) -> None:
        self._title = title
        self._warmup_s, self._run_s = warmup_s, run_s
        self._console = console or Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._last = 0.0, 0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.__exit__(kind, error, trace)

    def __call__(self, glimpses: list[Glimpse]) -> None:
        if self._console.is_terminal and glimpses:
            self._live.update(self.drawn(glimpses), refresh=True)

    def drawn(self, glimpses: list[Glimpse]) -> RenderableType:
        at_s = max(each.at_s for each in glimpses)
        names = list(glimpses[0].tenants)
        tenants = {name: merged(each.tenants[name] for each in glimpses) for name in names}
        whole = merged(tenants.values())
        return Group(self._headline(at_s, whole), _tenants(tenants, whole), _unanswered(whole))

    def _headline(self, at_s: float, whole: TenantLengthStats) -> RenderableType:
        before_s, before = self._last
        rate = (whole.offered - before) / (at_s - before_s) if at_s > before_s else 0.0
        self._last = at_s, whole.offered
        grid = Table.grid(padding=(0, 2))
        phase = "warm-up" if at_s < self._warmup_s else f"{rate:,.0f}/s"
        bar = ProgressBar(self._run_s, min(at_s, self._run_s), width=_BAR)
        moment = f"{min(at_s, self._run_s):.0f} of {self._run_s:.0f} s"
        grid.add_row(Text(self._title, style="bold"), bar, moment, phase)
        return grid


def _tenants(tenants: dict[str, TenantLengthStats], whole: TenantLengthStats) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tenant")
    for name in ("offered", "in time", "rejected", "failed", "p50 ms", "p90 ms", "p99 ms"):
        table.add_column(name, justify="right")
    for name, cell in list(tenants.items())[:_MAX_TENANTS]:
        table.add_row(name, *_cells(cell))
    if len(tenants) > 1:
        table.add_row("all", *_cells(whole), style="bold")
    return table


def _cells(cell: TenantLengthStats) -> Iterable[str]:
    failed = sum(cell.reasons.values()) - cell.rejected
    share = f"{cell.in_slo / cell.offered:.2%}" if cell.offered else "–"
    yield from (f"{cell.offered:,}", share, f"{cell.rejected:,}", f"{failed:,}")
    for percent in (50, 90, 99):
        seconds = cell.latency.percentile_s(percent)
        yield "–" if seconds is None else f"{seconds * 1e3:,.1f}"


def _unanswered(whole: TenantLengthStats) -> Text:
    most = sorted(whole.reasons.items(), key=lambda item: -item[1])[:6]
    said = ", ".join(f"{count:,} {reason}" for reason, count in most)
    return Text(f"not answered: {said}" if said else "", style="red")
