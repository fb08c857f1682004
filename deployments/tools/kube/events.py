"""What Kubernetes' events say of an object. They are kept for an hour, so none may be left.

An event's time is where its writer put it: a series' last observation, the last of those that were
counted, or the only one (core/v1 and events.k8s.io/v1).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from deployments.tools.kube.types import Object, time_of

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def newest(
    events: Sequence[Object], kind: str, name: str, reasons: Collection[str]
) -> Object | None:
    """The newest of these reasons about that object."""
    of_it = [
        each
        for each in events
        if each.get("reason") in reasons
        and each["involvedObject"].get("kind") == kind
        and each["involvedObject"].get("name") == name
    ]
    return max(of_it, key=lambda each: when(each) or _LONG_AGO, default=None)


def when(event: Object) -> datetime | None:
    series = event.get("series") or {}
    return time_of(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event.get("firstTimestamp")
    )


def text(event: Object) -> str:
    return f"{event.get('reason')}: {str(event.get('message', '')).strip()}"
