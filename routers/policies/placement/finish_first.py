"""Which replica is asked first? The one predicted to finish first: its remaining work plus a batch.

The batch is predicted at the replica's own speed. Idle replicas of about the same speed take turns,
or have an order where gateways share them (`ready_replicas.preference`).
A replica that is some seconds beyond its predicted finish is expected to take as many seconds more.
Stream replicas are compared by the share of their room that is taken and by the prompts that they
have yet to read; one that is much slower than its group is penalised by as much.
"""

from __future__ import annotations

from routers.state.ready_replicas import Placement
from routers.state.replica_state import AnyReplica


class FinishFirst(Placement):
    """The default placement."""

    def place(self, replica: AnyReplica, now: float) -> tuple[int, float, float]:
        return replica.place_by_finish(now)

    def score(self, replica: AnyReplica, now: float, batch_s: float) -> float:
        return replica.finish_in_s(now, batch_s)
