"""Which replica served a session last?

Requests of one session prefer that replica, because its cache may still hold their prompts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

_MOST = 10_000  # sessions
# How much later than on the best replica a batch may finish for the preference's sake, of its
# predicted seconds: near ties only.
_BOUND = 0.1


class Affinity:
    """Which replica served each session last. Keeps at most `most` sessions; those used least
    recently go."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._last: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def preferred(self, session: str) -> str | None:
        """Id of the replica that served the session last; None where none is known."""
        return self._last.get(session) if session else None

    def served(self, sessions: Iterable[str], replica_id: str) -> None:
        """This replica has served these sessions."""
        last = self._last
        for session in sessions:
            if session:
                last[session] = replica_id
                last.move_to_end(session)
        while len(last) > self._most:
            last.popitem(last=False)

    @staticmethod
    def gives_way(later_s: float, predicted_s: float) -> bool:
        """Whether finishing `later_s` after the best replica is too much to pay for the
        preference."""
        return later_s > predicted_s * _BOUND
