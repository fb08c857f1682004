"""For how long has a model been without a replica that can be reached?

Its requests wait for a while: a replica may be back before their time is up. An absence begins with
the first request that finds no replica, also of a model that nobody announces any more, as between
two anchors; it ends when a replica can be reached. A model of which nothing was heard at all is not
waited for.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from math import inf

HOLD_S = 30.0
_NOT_MISSED_YET = inf


class Absences:
    """`_since`: of `time.monotonic`, by model."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def unannounced(self, name: str) -> None:
        """From now on."""
        self._since[name] = _NOT_MISSED_YET

    def reached(self, name: str, *, announced: bool) -> None:
        """It has a replica again."""
        if name in self._since:
            if announced:
                del self._since[name]
            else:
                self._since[name] = _NOT_MISSED_YET

    def is_short(self, name: str, *, announced: bool) -> bool:
        """A request came and found no replica: whether it may wait."""
        now = time.monotonic()
        since = self._since.get(name, _NOT_MISSED_YET if announced else 0.0)
        if since == _NOT_MISSED_YET:
            since = self._since[name] = now
        return now - since < HOLD_S

    def keep(self, names: Collection[str]) -> None:
        """Forgets all others."""
        self._since = {name: since for name, since in self._since.items() if name in names}
