"""PromQL expressions that alerts and dashboards are made of; all add up the gateways.

Parameters: `by` are the labels to group by; `window` is the range of a rate, such as `10m`;
`chosen` are label matchers without their braces, "" for all samples. Names of metrics come without
the prefix `headrace_`.
"""

from __future__ import annotations

from collections.abc import Mapping

RATE_WINDOW = "$__rate_interval"
_ALL = {"namespace": ".*", "model": ".*", "tenant": ".*"}


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


def plain(query: str, window: str, chosen: Mapping[str, str] = _ALL) -> str:
    """A dashboard's query with Grafana's variables filled in, for use without Grafana."""
    query = query.replace(RATE_WINDOW, window)
    for name, value in chosen.items():
        query = query.replace(f"${name}", value)
    return query


def _braces(chosen: str) -> str:
    return f"{{{chosen}}}" if chosen else ""
