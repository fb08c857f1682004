"""Asks a Prometheus for the values of a query over a range of time.

Source: prometheus.io, "HTTP API", version 1.
"""

from __future__ import annotations

import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_TIMEOUT_S = 30.0
_PLACE = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class QueryFailed(RuntimeError):
    """Prometheus did not answer or refused the query; the message says why."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of time in Unix seconds, both ends included, with a value every `step_s`."""

    begin_s: float
    end_s: float
    step_s: float

    @property
    def moments(self) -> list[float]:
        count = int((self.end_s - self.begin_s) / self.step_s + 1e-6) + 1
        return [self.begin_s + self.step_s * place for place in range(count)]


@dataclass(frozen=True, slots=True)
class Answer:
    """One series: a value for each moment of the span, NaN where there is none."""

    labels: Mapping[str, str]
    values: Sequence[float]

    def called(self, legend: str) -> str:
        """A legend such as `{{tenant}} p95`, with this series' labels filled in."""
        return " ".join(_PLACE.sub(lambda at: self.labels.get(at[1], ""), legend).split())


def query_range(url: str, query: str, span: Span) -> list[Answer]:
    """The series that answer `query` (PromQL). Raises QueryFailed."""
    form = urllib.parse.urlencode(
        {"query": query, "start": span.begin_s, "end": span.end_s, "step": span.step_s}
    )
    moments = span.moments
    found = []
    for series in _post(f"{url}/api/v1/query_range", form)["data"]["result"]:
        values = [math.nan] * len(moments)
        for at_s, text in series["values"]:
            values[round((at_s - span.begin_s) / span.step_s)] = float(text)
        found.append(Answer(series["metric"], values))
    return found


def _post(url: str, form: str) -> Any:
    try:
        with urllib.request.urlopen(url, form.encode(), timeout=_TIMEOUT_S) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise QueryFailed(_reason(error)) from error
    except (OSError, ValueError) as error:
        raise QueryFailed(f"{url}: {error}") from error


def _reason(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError):
        return f"{error.code} {text[:200]}"
