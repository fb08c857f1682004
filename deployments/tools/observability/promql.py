"""What alerts and dashboards are made of: PromQL, and the types that describe them.

All expressions add up the gateways. Their parameters: `by` are the labels to group by; `window` is
the range of a rate, such as `10m`; `chosen` are label matchers without their braces, "" for all
samples. Names of metrics come without the prefix `headrace_`. Queries of dashboards may contain
Grafana's variables (`$tenant`, `$__rate_interval`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How soon somebody should react."""

    CRITICAL = "critical"  # at once, at night too
    WARNING = "warning"  # today
    INFO = "info"  # not by itself: it helps to explain another alert


@dataclass(frozen=True, slots=True)
class RecordedSeries:
    """A recording rule: Prometheus stores the query's result as a series with this name."""

    name: str
    query: str


@dataclass(frozen=True, slots=True)
class Alert:
    """An alerting rule. Its section of docs/alerts.md says what it means and what to do."""

    name: str
    query: str
    lasts: str  # fires after the query has had results for this time (`5m`)
    severity: Severity
    summary: str  # one sentence, with Prometheus's templates
    look_at: str  # where to look for the cause


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules that Prometheus evaluates one after another."""

    name: str
    rules: tuple[RecordedSeries | Alert, ...]
    interval: str = ""  # between two evaluations (`4m`); "": Prometheus's own setting


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a panel; it may result in several lines."""

    promql: str
    legend: str  # a line's name; `{{label}}` stands for the value of a label


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram of a dashboard."""

    title: str
    says: str  # the description
    unit: str  # Grafana's name of it
    queries: tuple[Query, ...]
    stacked: bool = False  # for lines whose sum means something
    logarithmic: bool = False  # for values that differ by powers of ten
    may_be_empty: str = ""  # why a healthy server may show nothing; "": it always shows something


@dataclass(frozen=True, slots=True)
class PanelRow:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a dashboard among the values of a label; at first, all of them."""

    name: str  # the label
    metric: str  # a metric that has the label


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page of panels."""

    name: str  # of its file and in its URL
    title: str
    says: str  # the description
    variables: tuple[Variable, ...]
    rows: tuple[PanelRow, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


RATE_WINDOW = "$__rate_interval"


def rate(counter: str, by: str, window: str, chosen: str = "") -> str:
    """A counter's increase a second."""
    return f"sum by ({by}) (rate(headrace_{counter}{_braces(chosen)}[{window}]))"


def mean(histogram: str, by: str, window: str, chosen: str = "") -> str:
    """The mean of a histogram's samples."""
    total = rate(f"{histogram}_sum", by, window, chosen)
    return f"{total} / {rate(f'{histogram}_count', by, window, chosen)}"


def quantile(q: float, histogram: str, by: str, window: str, chosen: str = "") -> str:
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q:g}, {rate(f'{histogram}_bucket', labels, window, chosen)})"


def deviation(by: str, window: str, chosen: str = "") -> str:
    """Batch times' coefficient of variation: standard deviation over mean.

    Its square is the mean of squares over the square of the mean, less one.
    """
    squares = rate("service_squared_seconds_total", by, window, chosen)
    count = rate("service_seconds_count", by, window, chosen)
    total = rate("service_seconds_sum", by, window, chosen)
    return f"sqrt(clamp_min({squares} * {count} / {total} ^ 2 - 1, 0))"


def _braces(chosen: str) -> str:
    return f"{{{chosen}}}" if chosen else ""
