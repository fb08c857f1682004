"""The types in which alerts and dashboards are described.

Queries are PromQL. Those of dashboards may hold Grafana's variables (`$tenant`,
`$__rate_interval`), which `queries.plain` fills in for who has no Grafana.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """CRITICAL: somebody gets up. WARNING: somebody looks today. INFO: beside others, says why."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class RecordedSeries:
    """A query whose answer Prometheus keeps under a name of its own."""

    name: str
    query: str


@dataclass(frozen=True, slots=True)
class Alert:
    """`lasts`: how long it must be so (`5m`). `summary`: one sentence, in Prometheus's templates.
    `look_at`: where to look. What it means and what to do is its section of docs/alerts.md."""

    name: str
    query: str
    lasts: str
    severity: Severity
    summary: str
    look_at: str


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """`interval`: between evaluations (`4m`); "", Prometheus's own."""

    name: str
    rules: tuple[RecordedSeries | Alert, ...]
    interval: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """`legend`: what a line is called, `{{label}}` standing for a label's value."""

    promql: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """`unit`: as Grafana names it. `stacked`: lines add up to something. `logarithmic`: they differ
    by powers of ten. `may_be_empty`: why it may show nothing on a server that is well, "" where it
    may not."""

    title: str
    says: str
    unit: str
    queries: tuple[Query, ...]
    stacked: bool = False
    logarithmic: bool = False
    may_be_empty: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a dashboard: values of a label; all of them, unless one is chosen."""

    name: str
    metric: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """`name`: of its file and its address."""

    name: str
    title: str
    says: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)
