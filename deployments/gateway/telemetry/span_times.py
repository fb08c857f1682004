"""What a span is made from: its name, when it began and ended, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Attributes = Mapping[str, str | int | float | bool]


class SpanTimes(NamedTuple):
    """One span below a request or a batch: wall-clock nanoseconds since the epoch."""

    name: str
    start_ns: int
    end_ns: int
