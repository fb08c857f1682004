"""A channel whose far end is the test: it sees what was sent and says what comes back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from local_frames import soon, to_gateway, to_replica

from deployments.contract.channel.frames import (
    BatchCall,
    BatchReply,
    Buffer,
    Kind,
    RowError,
    decode_call,
    encode_reply,
)
from deployments.contract.codec import WIRE
from deployments.gateway.queues.connections import ChannelListener, LinkCounts
from deployments.process.replica_directory import RunningReplica
from runtimes.types import Ragged

_NO_STAGES = (0.0, 0.0, 0.0, 0.0, 0.0)


class FarEnd:
    """`sent`: where each batch went; `calls`: the batches; `starts`: those whose start was asked
    for. A drop is answered busy while `heeds`. Nothing can be written to one that is `gone`.
    `released`: replicas that were let go."""

    listener: ChannelListener

    def __init__(self) -> None:
        self.counts = LinkCounts()
        self.reached = ["r1", "r2"]
        self.sent: dict[int, str] = {}
        self.calls: dict[int, BatchCall] = {}
        self.starts: set[int] = set()
        self.dropped: list[int] = []
        self.heeds = True
        self.gone: set[str] = set()
        self.released: list[str] = []
        self.closed = False

    # ---- `ReplicaChannel` ---------------------------------------------------------------------

    def follow(self, listed: Sequence[RunningReplica]) -> None:
        self.reached = [replica.replica_id for replica in listed]

    def send(self, replica_id: str, kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> bool:
        frame = to_replica(kind, lease_id, body)
        if replica_id in self.gone:
            return False
        if kind is Kind.BATCH:
            self.sent[lease_id], self.calls[lease_id] = replica_id, decode_call(frame.body)
        if kind is Kind.WATCH or (kind is Kind.BATCH and self.calls[lease_id].tells_start):
            self.starts.add(lease_id)
        if kind is Kind.DROP:
            self.dropped.append(lease_id)
            if self.heeds:
                soon(self.reply, lease_id, reply_of(busy=True))
        return True

    def version(self, replica_id: str) -> int:
        return WIRE

    def release(self, replica_id: str) -> None:
        if replica_id not in self.reached:
            self.released.append(replica_id)

    def close(self) -> None:
        self.closed = True

    # ---- what the test makes of it ------------------------------------------------------------

    def reply(self, lease_id: int, reply: BatchReply) -> None:
        self.says(lease_id, Kind.REPLY, encode_reply(reply))

    def says(self, lease_id: int, kind: Kind, body: Sequence[Buffer] = ()) -> None:
        self.listener.received(self.sent[lease_id], to_gateway(kind, lease_id, body))

    def lose(self, replica_id: str) -> None:
        self.listener.link_lost(replica_id, "it was cut")


def reply_of(*values: float, failed: tuple[RowError, ...] = (), busy: bool = False) -> BatchReply:
    """Rows of one single number each."""
    data = np.array(values, dtype=np.float32)
    outputs = {"y": Ragged("FP32", data, ((),) * len(values))} if values else {}
    return BatchReply(busy, outputs, failed, 0.0, 0.1, 0, _NO_STAGES, 0, 0, 0, 0.0, 0.0)
