"""Was the like of this refused a moment ago, with nothing gone from the queue since?

Under overload nearly every newcomer is refused, all for the same reason: what waits before them. A
refusal as late holds for every further one-row request of that flow, in that bucket or one of
longer rows, that has not more time by as much as the first was late; until a row leaves the queue
or a batch ends, and for `KEPT_S` at most, since forecasts move with time too. So all but a few
dozen newcomers a second are refused by a look, even by their headers alone, before their bodies are
read.
"""

from __future__ import annotations

from dataclasses import dataclass

from routers.types import FlowKey

KEPT_S = 0.02


@dataclass(frozen=True, slots=True)
class Refused:
    """`left_s`: to its deadline; `expires_s`: to its expiry; `late_by_s`: how late it was."""

    edge: int
    left_s: float
    expires_s: float
    late_by_s: float
    retry_after_s: float


class RejectionCache:
    """`at`: how many rows have left the queue so far; what was refused at another count is no
    echo."""

    def __init__(self) -> None:
        self._last: dict[FlowKey, tuple[Refused, int, float]] = {}

    def __bool__(self) -> bool:
        """Whether anything at all was refused a moment ago."""
        return bool(self._last)

    def keep(self, flow: FlowKey, refused: Refused, at: int, now: float) -> None:
        self._last[flow] = refused, at, now + KEPT_S

    def of(
        self, flow: FlowKey, edge: int, left_s: float, expires_s: float, at: int, now: float
    ) -> Refused | None:
        """What one of these would be told again."""
        found = self._last.get(flow)
        if found is None:
            return None
        refused, when, until = found
        if when != at or now >= until:
            del self._last[flow]
            return None
        more_s = max(left_s - refused.left_s, expires_s - refused.expires_s)
        return refused if edge >= refused.edge and more_s < refused.late_by_s else None

    def clear(self) -> None:
        """A batch has ended, or settings are others: everything is to be asked anew."""
        self._last.clear()
