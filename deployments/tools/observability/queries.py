"""Queries that alerts and dashboards are made of, over all gateways.

`by`: the labels that tell results apart. `chosen`: matchers of the samples that count, as they
stand between braces; "" for all.
"""

from __future__ import annotations

from collections.abc import Mapping

RATE_WINDOW = "$__rate_interval"
_ALL = {"namespace": ".*", "model": ".*", "tenant": ".*"}


def rate(counter: str, by: str, window: str, chosen: str = "") -> str:
    """A second."""
    return f"sum by ({by}) (rate(headrace_{counter}{_braces(chosen)}[{window}]))"


def mean(histogram: str, by: str, window: str, chosen: str = "") -> str:
    """Of a histogram's samples."""
    total = rate(f"{histogram}_sum", by, window, chosen)
    return f"{total} / {rate(f'{histogram}_count', by, window, chosen)}"


def quantile(q: float, histogram: str, by: str, window: str, chosen: str = "") -> str:
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q:g}, {rate(f'{histogram}_bucket', labels, window, chosen)})"


def deviation(by: str, window: str, chosen: str = "") -> str:
    """Standard deviation of batch times over their mean: the mean of squares over the square of the
    mean, less one, is its square."""
    squares = rate("service_squared_seconds_total", by, window, chosen)
    count = rate("service_seconds_count", by, window, chosen)
    total = rate("service_seconds_sum", by, window, chosen)
    return f"sqrt(clamp_min({squares} * {count} / {total} ^ 2 - 1, 0))"


def plain(query: str, window: str, chosen: Mapping[str, str] = _ALL) -> str:
    """A dashboard's query without Grafana: its variables are filled in."""
    query = query.replace(RATE_WINDOW, window)
    for name, value in chosen.items():
        query = query.replace(f"${name}", value)
    return query


def _braces(chosen: str) -> str:
    return f"{{{chosen}}}" if chosen else ""
