"""May a request wait for a model that has no reachable replica at the moment?

Yes, for the first `HOLD_S` seconds of the model's absence: a replica may be back before the
request's time is up. An absence begins with the first request that finds no replica, and ends when
a replica can be reached. A model that nobody announces any more (between two anchors) is treated
alike. A request for a model of which nothing was ever heard does not wait. `Catalogue` asks.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from math import inf

HOLD_S = 30.0
_NOT_MISSED_YET = inf  # the model may have no replica, but no request has found that yet


class Absences:
    """The absences of a gateway's models."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}  # by model: when its absence began, `time.monotonic`

    def unannounced(self, name: str) -> None:
        """Nobody announces the model any more; its absence begins with its next request."""
        self._since[name] = _NOT_MISSED_YET

    def reached(self, name: str, *, announced: bool) -> None:
        """The model has a replica again: its absence is over."""
        if name in self._since:
            if announced:
                del self._since[name]
            else:
                self._since[name] = _NOT_MISSED_YET

    def is_short(self, name: str, *, announced: bool) -> bool:
        """Whether a request that has found no replica may wait. Begins the model's absence with
        this request, if it has not begun."""
        now = time.monotonic()
        since = self._since.get(name, _NOT_MISSED_YET if announced else 0.0)
        if since == _NOT_MISSED_YET:
            since = self._since[name] = now
        return now - since < HOLD_S

    def keep(self, names: Collection[str]) -> None:
        """Forget the absences of all other models."""
        self._since = {name: since for name, since in self._since.items() if name in names}
