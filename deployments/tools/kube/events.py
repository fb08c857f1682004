"""Finds the newest Kubernetes event about an object.

Kubernetes keeps events for an hour, so there may be none left. The field that holds an event's time
depends on its writer (core/v1 or events.k8s.io/v1) and on whether the event was repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from deployments.tools.kube.types import Object, time_of

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def newest(
    events: Sequence[Object], kind: str, name: str, reasons: Collection[str]
) -> Object | None:
    """The newest event about the object `name` of that kind with one of the reasons, if any."""
    matching = [
        each
        for each in events
        if each.get("reason") in reasons
        and each["involvedObject"].get("kind") == kind
        and each["involvedObject"].get("name") == name
    ]
    return max(matching, key=lambda each: when(each) or _LONG_AGO, default=None)


def when(event: Object) -> datetime | None:
    """The time of the event, of its last repetition if it was repeated."""
    series = event.get("series") or {}
    return time_of(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event.get("firstTimestamp")
    )


def text(event: Object) -> str:
    return f"{event.get('reason')}: {str(event.get('message', '')).strip()}"
