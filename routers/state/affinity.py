"""Which replica served a session last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

# Of the affinity to a session's replica:
_MOST = 10_000
_BATCH_BOUND = 0.1  # of a batch's predicted seconds: near ties only
_STREAM_BOUND = 0.5  # of a stream's: as much as a cache may save


class Affinity:
    """Which replica served each session last: at most `most`, those used least recently go."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._last: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def preferred(self, session: str) -> str | None:
        return self._last.get(session) if session else None

    def served(self, sessions: Iterable[str], replica_id: str) -> None:
        last = self._last
        for session in sessions:
            if session:
                last[session] = replica_id
                last.move_to_end(session)
        while len(last) > self._most:
            last.popitem(last=False)

    @staticmethod
    def gives_way(later_s: float, predicted_s: float, *, streams: bool) -> bool:
        """Whether finishing so much later than the best is too much to pay for a preference."""
        return later_s > predicted_s * (_STREAM_BOUND if streams else _BATCH_BOUND)
