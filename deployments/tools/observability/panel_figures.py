"""Draws a dashboard's panels from Prometheus's answers, for machines without Grafana.

A line is broken where there is no value. Of many lines, only as many are drawn as there are
colours, those with the highest values; the figure says how many were left out. Lines that Grafana
stacks are drawn unstacked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from deployments.tools.observability.prometheus_api import Answer, Span, query_range
from deployments.tools.observability.queries import plain
from deployments.tools.observability.types import Dashboard, Panel
from loadtests.report import plots
from loadtests.report.plots import Axis, Figure, Series, lines
from loadtests.report.scale import Scale, label, linear, logarithmic
from loadtests.results.report_table import Table

_UNITS: dict[str, tuple[str, Callable[[float], str]]] = {
    "s": ("", lambda value: _seconds(value)),
    "percentunit": ("", lambda value: f"{value * 100:.4g} %"),
    "reqps": ("requests a second", label),
    "short": ("", label),
}


@dataclass(frozen=True, slots=True)
class AskedPanel:
    """A panel and Prometheus's answers to its queries."""

    panel: Panel
    moments: Sequence[float]  # Unix seconds
    found: dict[str, Sequence[float]]  # lines by name: a value for each moment, NaN for none

    @property
    def is_empty(self) -> bool:
        return not self.found

    @property
    def drawn(self) -> list[str]:
        """Names of the lines that are drawn, in the order of `found`."""
        highest = sorted(self.found, key=lambda name: -_highest(self.found[name]))
        kept = set(highest[: plots.COLOURS])
        return [name for name in self.found if name in kept]


def ask(url: str, panel: Panel, span: Span, window: str) -> AskedPanel:
    """Asks the Prometheus at `url` for a panel's lines. `window`: that of rates, such as `20s`.

    Raises QueryFailed.
    """
    found: dict[str, Sequence[float]] = {}
    for query in panel.queries:
        answers = query_range(url, plain(query.promql, window), span)
        for answer in sorted(answers, key=lambda each: _sort_key(each.called(query.legend))):
            if not all(math.isnan(value) for value in answer.values):
                found[_name(answer, query.legend, found)] = answer.values
    return AskedPanel(panel, span.moments, found)


def ask_all(url: str, dashboard: Dashboard, span: Span, window: str) -> Iterator[AskedPanel]:
    """Asks for the panels of a dashboard, one after another. Raises QueryFailed."""
    for panel in dashboard.panels:
        yield ask(url, panel, span, window)


def figure(asked: AskedPanel) -> Figure:
    """The panel as a figure of a page. The panel must not be empty."""
    part = sheet_panel(asked)
    svg = lines(part.title, part.series, part.x, part.y)
    names = tuple(each.name for each in part.series)
    table = Table("", ("s", *asked.found), tuple(_rows(asked)))
    return Figure(part.title, _says(asked), svg, table, names)


def sheet_panel(asked: AskedPanel) -> plots.Panel:
    """The panel as a part of a picture with many. The panel must not be empty."""
    panel, begin = asked.panel, asked.moments[0]
    unit, text = _UNITS[panel.unit]
    at_s = [moment - begin for moment in asked.moments]
    series = [
        Series(name, list(zip(at_s, asked.found[name], strict=True)), _hint(text))
        for name in asked.drawn
    ]
    values = [y for each in series for _, y in each.points if math.isfinite(y)]
    y = Axis(unit, logarithmic(values) if panel.logarithmic else linear(values), text)
    return plots.Panel(panel.title, series, Axis("s", Scale(0.0, at_s[-1])), y)


def _rows(asked: AskedPanel) -> Iterator[tuple[float | None, ...]]:
    for at, moment in enumerate(asked.moments):
        values = [asked.found[name][at] for name in asked.found]
        seen = [value if math.isfinite(value) else None for value in values]
        yield (round(moment - asked.moments[0], 1), *seen)


def _says(asked: AskedPanel) -> str:
    left = len(asked.found) - len(asked.drawn)
    return asked.panel.says + (f" {left} lower lines are not drawn." if left else "")


def _name(answer: Answer, legend: str, taken: dict[str, Sequence[float]]) -> str:
    """The line's name, with a number if an earlier series has the same one."""
    name = answer.called(legend) or "value"
    number = sum(other == name or other.startswith(f"{name} #") for other in taken)
    return f"{name} #{number + 1}" if number else name


def _sort_key(name: str) -> list[tuple[float, str]]:
    """Sorts names alphabetically, and numbers in them as numbers."""
    parts = re.split(r"(\d+)", name)
    return [(float(part), "") if part.isdigit() else (math.inf, part) for part in parts]


def _hint(text: Callable[[float], str]) -> Callable[[float, float], str]:
    return lambda x, y: f"{x:g} s: {text(y)}"


def _seconds(value: float) -> str:
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * scale >= 1.0:
            return f"{value * scale:.4g} {unit}"
    return f"{value * 1e6:.3g} µs" if value else "0"


def _highest(values: Sequence[float]) -> float:
    return max((value for value in values if math.isfinite(value)), default=-math.inf)
