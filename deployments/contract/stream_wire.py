"""What crosses between a gateway and a replica that generates: a call a request, a stream for all.

A gateway opens one stream to each replica and keeps it; every message on it holds what all of the
gateway's requests there have brought since the last one, an engine step's worth. Requests begin and
are aborted by short calls of their own, which return at once; nothing of an answer comes by them.
Whatever happens to a request that has begun, its last piece says how it ended. A stream that breaks
loses all that ran on it. Pickled, over Serve's gRPC transport.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from runtimes.types import EngineLoad


class StreamEnd(Enum):
    """How a request ended at its replica."""

    DONE = "done"  # answered, or refused by the engine: the piece has the answer and its status
    ABORTED = "aborted"  # the gateway asked for it
    BUSY = "busy"  # not begun: no room, or not the version that was asked for
    FAILED = "failed"  # the engine failed on it; it may run again elsewhere if nothing was sent


class GenerateCall(NamedTuple):
    """`endpoint`, `body`: as in `runtimes.types.Ask`. `budget_s`: how long anybody waits for it."""

    gateway: str
    lease_id: int
    endpoint: str
    body: bytes
    budget_s: float
    priority: int = 0


class Piece(NamedTuple):
    """What one request has brought since the last message; fields as in `runtimes.types.Chunk`.
    service_s: since it began here; `end` None: more is to come."""

    lease_id: int
    data: bytes
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    held_tokens: int
    service_s: float
    status: int = 200
    end: StreamEnd | None = None


class StepMessage(NamedTuple):
    """`held`, `seen`: as in `routers.types.Report`; `inflight`: requests of all gateways here;
    `load`: the engine's own account. An empty message says that the replica lives."""

    pieces: tuple[Piece, ...]
    held: int
    seen: int
    inflight: int
    load: EngineLoad
