"""What frames carry of requests to generate: what is asked, what has come of it, how it ended.

One message of a replica holds what all requests of one gateway have brought since the one before.
Headers alone, as `messages` writes and checks them; an answer's bytes are in the header. Times are
budgets and durations in seconds, never clock readings.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from deployments.contract.channel.frames import Buffer
from deployments.contract.channel.messages import check_times, check_turn, encoded, read_header
from routers.api.requests import FlowWork, Shares
from runtimes.types import EngineLoad


class StreamEnd(Enum):
    """How a request ended at its replica."""

    DONE = "done"  # answered, or refused by the engine: the piece has the answer and its status
    ABORTED = "aborted"  # the gateway asked for it
    BUSY = "busy"  # not begun: no room, or the replica is to go
    FAILED = "failed"  # the engine failed on it; it may run again elsewhere if nothing was sent


class GenerateCall(NamedTuple):
    """`endpoint`, `body`, `salt`: as in `runtimes.types.Ask`. `budget_s`: how long anybody waits
    for it. rank, charges, waiting: as of `BatchCall`. input_s, output_s: what a token that has to
    be read, and one that is written, is worth at its gateway; both 0: nobody knows."""

    endpoint: str
    body: bytes
    budget_s: float
    priority: int = 0
    salt: str = ""
    rank: tuple[int, int, float] = (0, 0, 0.0)
    charges: tuple[FlowWork, ...] = ()
    waiting: tuple[FlowWork, ...] | None = ()
    input_s: float = 0.0
    output_s: float = 0.0


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
    """`held`, `seen`: as in `api.requests.Report`; `inflight`: requests of all gateways here;
    `load`: the engine's own account. `shares`: told when one of the pieces is a last one, and now
    and then besides. `read`, `written`: tokens that requests of all gateways were given here, ever:
    of prompts but what was cached, and of outputs. An empty message says that the replica lives."""

    pieces: tuple[Piece, ...]
    held: int
    seen: int
    inflight: int
    load: EngineLoad
    shares: Shares | None = None
    read: int = 0
    written: int = 0


_read_generate = msgspec.msgpack.Decoder(GenerateCall).decode
_read_steps = msgspec.msgpack.Decoder(StepMessage).decode


def encode_generate(call: GenerateCall) -> list[Buffer]:
    return [encoded(call)]


def decode_generate(body: memoryview) -> GenerateCall:
    """Raises MessageError."""
    call = read_header(body, _read_generate)
    check_times(call.budget_s, call.input_s, call.output_s)
    check_turn(call.rank, call.charges, call.waiting)
    return call


def encode_steps(message: StepMessage) -> list[Buffer]:
    return [encoded(message)]


def decode_steps(body: memoryview) -> StepMessage:
    """Raises MessageError."""
    return read_header(body, _read_steps)
