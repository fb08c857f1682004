"""Reads a server's `/metrics` into samples, and sums and subtracts them.

Counters and histogram sums grow from the server's start, so a measurement is the difference of two
pages. This module knows the Prometheus text format, not which metrics there are.

Source: Prometheus exposition formats, text format 0.0.4.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class MetricSample:
    name: str
    labels: dict[str, str]
    value: float


def parse(text: str) -> list[MetricSample]:
    """The samples of a page. Raises `ValueError` if the text is not in the format."""
    return [
        MetricSample(sample.name, dict(sample.labels), float(sample.value))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def fetch(url: str, timeout_s: float = 5.0) -> list[MetricSample]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=timeout_s) as answer:
        return parse(answer.read().decode())


def total(samples: Iterable[MetricSample], name: str) -> float:
    return sum(sample.value for sample in samples if sample.name == name)


def by_label(samples: Iterable[MetricSample], name: str, label: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for sample in samples:
        if sample.name == name:
            key = sample.labels.get(label, "")
            sums[key] = sums.get(key, 0.0) + sample.value
    return sums


def mean_by_label(
    before: list[MetricSample], after: list[MetricSample], histogram: str, label: str
) -> dict[str, tuple[float, float]]:
    """By value of `label`: observations between two pages, and their mean."""
    (sums, counts), (old_sums, old_counts) = (
        [by_label(page, f"{histogram}_{part}", label) for part in ("sum", "count")]
        for page in (after, before)
    )
    more = {key: count - old_counts.get(key, 0.0) for key, count in counts.items()}
    return {
        key: (count, (sums.get(key, 0.0) - old_sums.get(key, 0.0)) / count)
        for key, count in more.items()
        if count > 0
    }
