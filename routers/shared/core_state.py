"""The parts that a dispatcher is made of, in one record.

The dispatcher builds the record once. The functions of `lease_completion`, `suspension`,
`stream_leases`, `wakeups`, `snapshots` and `invariants` are given it, because each of them needs
several parts. The parts never change, what they hold does.
"""

from __future__ import annotations

from dataclasses import dataclass

from routers.shared.hedger import Hedger
from routers.shared.replica_watch import SilenceWatch
from routers.shared.requests import RequestTable
from routers.shared.stream_hedger import StreamHedger
from routers.state.leases import LeaseTable
from routers.state.replicas import ReplicaSet


@dataclass(frozen=True, slots=True)
class State:
    """The parts of one dispatcher."""

    requests: RequestTable
    replicas: ReplicaSet
    leases: LeaseTable
    copies: Hedger  # of batches
    silence: SilenceWatch
    stream_hedger: StreamHedger
