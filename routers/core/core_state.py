"""The parts that a dispatcher is made of."""

from __future__ import annotations

from dataclasses import dataclass

from routers.core.replica_watch import SilenceWatch
from routers.core.request_table import RequestTable
from routers.core.speculative_copies import SpeculativeCopies
from routers.core.stream_copies import StreamCopies
from routers.state.leases import LeaseTable
from routers.state.replicas import ReplicaSet


@dataclass(frozen=True, slots=True)
class State:
    """The parts a dispatcher is made of, for whoever only looks."""

    requests: RequestTable
    replicas: ReplicaSet
    leases: LeaseTable
    copies: SpeculativeCopies
    silence: SilenceWatch
    stream_copies: StreamCopies
