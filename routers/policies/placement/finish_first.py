"""Which replica is asked first? The one predicted to finish first: its remaining work plus a batch.

The batch is predicted at the replica's own speed. Idle replicas of about the same speed take turns,
or have an order where gateways share them (`ready_replicas.preference`).
A replica that is some seconds beyond its predicted finish is expected to take as many seconds more.
Stream replicas are compared by the share of their room that is taken and by the prompts that they
have yet to read; one that is much slower than its group is penalised by as much.
"""

from __future__ import annotations

from routers.state.ready_replicas import (
    BUSY,
    DUE,
    IDLE,
    OVERRUN,
    finish_in_s,
    load_of,
    preference,
    slowdown_of_stream,
    speed_band,
)
from routers.state.replica_state import ReplicaState

_READING = 4096.0  # prompt tokens yet to be read that weigh as much as a full replica


class FinishFirst:
    """The default placement."""

    def place(self, replica: ReplicaState, now: float) -> tuple[int, float, float]:
        if replica.streams:
            load = load_of(replica) + replica.reading / _READING
            return BUSY, (1.0 + load) * slowdown_of_stream(replica), replica.last_used
        if not replica.leases and replica.foreign_until <= now:
            return IDLE, speed_band(replica), preference(replica)
        if replica.finish_at >= now:
            return DUE, replica.finish_at, len(replica.leases)
        return OVERRUN, -replica.finish_at, len(replica.leases)

    def score(self, replica: ReplicaState, now: float, batch_s: float) -> float:
        return finish_in_s(replica, now, batch_s)

    def answered(self, replica: ReplicaState, now: float) -> None:
        """Learns nothing from it."""
