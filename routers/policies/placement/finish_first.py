"""The replica that is predicted to finish first: what it still has to do, and a batch at its speed.

Idle replicas of about the same speed take turns. One that runs beyond its prediction is expected to
go on for as long as it already has. Stream replicas go by the share of their room that is taken and
by the prompts that they have yet to read, one that is much slower than the others by as much more.
"""

from __future__ import annotations

from routers.state.ready_replicas import (
    BUSY,
    DUE,
    IDLE,
    OVERRUN,
    drag_of,
    finish_in_s,
    load_of,
    speed_band,
)
from routers.state.replica_state import ReplicaState

_READING = 4096.0  # tokens of prompts yet to be read that weigh as much as being full


class FinishFirst:
    def place(self, replica: ReplicaState, now: float) -> tuple[int, float, float]:
        if replica.streams:
            load = load_of(replica) + replica.reading / _READING
            return BUSY, (1.0 + load) * drag_of(replica), replica.last_used
        if not replica.leases and replica.foreign_until <= now:
            return IDLE, speed_band(replica), replica.last_used
        if replica.finish_at >= now:
            return DUE, replica.finish_at, len(replica.leases)
        return OVERRUN, -replica.finish_at, len(replica.leases)

    def score(self, replica: ReplicaState, now: float, batch_s: float) -> float:
        return finish_in_s(replica, now, batch_s)

    def answered(self, replica: ReplicaState, now: float) -> None:
        """Nothing is learnt of it here."""
