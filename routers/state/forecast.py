"""What a new request was told of its wait, kept until it has come true or not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Forecast:
    """Predicted seconds until a new request is started, of the `slack_s` there are until its latest
    start; `late_by_s` more than there are. 0.0: it is on time."""

    wait_s: float
    slack_s: float
    late_by_s: float = 0.0
    edge: int = 0
    cost_s: float = 0.0
