"""Frames between a gateway and replicas that are played in its process: the bytes, no sockets."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from typing import Any

from deployments.contract.channel.frames import (
    GATEWAY_KINDS,
    MAX_FRAME_BYTES,
    REPLICA_KINDS,
    Buffer,
    Frame,
    FrameReader,
    Kind,
    framed,
)


def to_replica(kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> Frame:
    """What a replica reads where a gateway wrote this. Raises FrameError."""
    return _travelled(GATEWAY_KINDS, framed(kind, lease_id, body))


def to_gateway(kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> Frame:
    """What a gateway reads where a replica wrote this. Raises FrameError."""
    return _travelled(REPLICA_KINDS, framed(kind, lease_id, body))


def _travelled(kinds: frozenset[Kind], parts: Sequence[Buffer]) -> Frame:
    (frame,) = FrameReader(kinds, MAX_FRAME_BYTES).feed(b"".join(parts))
    return frame


def soon(act: Callable[..., None], *of: Any) -> None:
    """In a later turn of the loop, outside any request's context."""
    asyncio.get_running_loop().call_soon(act, *of, context=contextvars.Context())
