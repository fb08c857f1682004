"""How long each phase of a replica's start took, from its constructor's beginning until it serves.

What came before, its place, its process and imports, the autoscaler knows: it saw the order. A
start that spent a second or more on fetching and converting its artifact began cold; a shorter one
found it on its node.
"""

from __future__ import annotations

from autoscaling.types import StartReading, State

PREPARING = "preparing"
READY = "ready"
_STAGING = ("staging",)
_COLD_S = 1.0


class StartPhases:
    """`began`: when the constructor did, as all times seconds on one monotonic clock."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._at: dict[str, float] = {PREPARING: began}

    def mark(self, phase: str, now: float) -> None:
        """It begins; said again, it goes on."""
        self._at.setdefault(phase, now)

    def reading(self, model: str, group: str, now: float) -> StartReading:
        """Of a replica that is ready now."""
        begun = [(name, at) for name, at in self._at.items() if name != READY]
        ends = [at for _, at in begun[1:]] + [now]
        phases = tuple((name, end - at) for (name, at), end in zip(begun, ends, strict=True))
        staged_s = sum(seconds for name, seconds in phases if name in _STAGING)
        state = State.COLD if staged_s >= _COLD_S else State.STAGED
        return StartReading(model, group, state, now - self._began, phases)
