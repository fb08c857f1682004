"""Frames: what travels on the connection between a gateway and a replica.

A head of 13 bytes, little-endian (size of the body, kind, lease), then the body. A lease's id means
something on its connection alone. The reader does no I/O: bytes in, whole frames out. A body is
held only as far as it has come, and a head that announces too much is refused before any of it.
What a body holds is said by `messages` and `handshake`; frames without one are all in their head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

HEAD = Struct("<IBQ")
MOST_FRAME_BYTES = 1 << 30
MOST_HANDSHAKE_BYTES = 4096
STALLED_S, PROGRESS_BYTES = 10.0, 1 << 16
Buffer = bytes | bytearray | memoryview


class Kind(IntEnum):
    """Who sends it, and what it says."""

    HELLO = 1  # gateway: who it is, and whom it wants
    CHALLENGE = 2  # replica: its proof, and what the gateway has to prove
    PROOF = 3  # gateway
    WELCOME = 4  # replica: the connection stands
    REFUSED = 5  # replica: why it does not
    BATCH = 10  # gateway: run these rows; one REPLY or FAULT follows
    BEGIN = 11  # gateway: run this request; STARTED and STEPS follow
    DROP = 12  # gateway: nobody waits for the batch; return it unless it has started
    ABORT = 13  # gateway: nobody waits for the request; end it
    WATCH = 14  # gateway: say when the batch starts
    CREDIT = 15  # gateway: so many bytes of STEPS have been taken in, ever (in the head's lease)
    STARTED = 20  # replica: the lease runs
    REPLY = 21  # replica: the batch's answer
    FAULT = 22  # replica: its device failed the lease, and why
    STEPS = 23  # replica: what all of this gateway's requests have had since the last one
    GOAWAY = 24  # either: no new lease after this; the replica ends once it has seen the gateway's
    UNSENT = 25  # replica: it is well, and has no answer that could be sent; why


GATEWAY_KINDS = frozenset(
    {Kind.BATCH, Kind.BEGIN, Kind.DROP, Kind.ABORT, Kind.WATCH, Kind.CREDIT, Kind.GOAWAY}
)
REPLICA_KINDS = frozenset(
    {Kind.STARTED, Kind.REPLY, Kind.FAULT, Kind.UNSENT, Kind.STEPS, Kind.GOAWAY}
)


class FrameError(Exception):
    """What came is no frame that may come here; nothing after it can be told apart."""


class Frame(NamedTuple):
    """`body`: a view, which keeps what was read with it."""

    kind: Kind
    lease_id: int
    body: memoryview


def framed(kind: Kind, lease_id: int = 0, body: Sequence[Buffer] = ()) -> list[Buffer]:
    """One frame, as the buffers to write in order. Raises FrameError for a body over the limit."""
    size = sum([len(part) for part in body])
    if size > MOST_FRAME_BYTES:
        raise FrameError(f"{size} bytes do not fit into one frame of {MOST_FRAME_BYTES}")
    return [HEAD.pack(size, kind, lease_id), *body]


class FrameReader:
    """Bytes into frames. `kinds`: what may come; `most_bytes`: of a body. Both may be changed
    between frames, as a handshake does."""

    def __init__(self, kinds: frozenset[Kind], most_bytes: int = MOST_HANDSHAKE_BYTES) -> None:
        self.kinds = kinds
        self.most_bytes = most_bytes
        self.frames = 0  # that were whole, ever
        self._rest = bytearray()
        self._wanted = HEAD.size  # until then the rest holds no whole frame

    @property
    def rest_bytes(self) -> int:
        """Of a frame that is not all here."""
        return len(self._rest)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole with what was read; to be taken to the last. Raises FrameError
        where one may not come, after those before it."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            whole: bytes | bytearray = self._rest
        else:
            whole = data  # mostly a read begins and ends with a frame, and nothing is copied
        view, at = memoryview(whole), 0
        while (end := self._end(view, at)) <= len(whole):
            _, kind, lease_id = HEAD.unpack_from(view, at)
            self.frames += 1
            yield Frame(Kind(kind), lease_id, view[at + HEAD.size : end])
            at = end
        self._rest = bytearray(view[at:])
        self._wanted = end - at

    def _end(self, view: memoryview, at: int) -> int:
        """Where the frame that begins there ends, or its head where that is not all here."""
        if len(view) - at < HEAD.size:
            return at + HEAD.size
        size, kind, _ = HEAD.unpack_from(view, at)
        if kind not in self.kinds:
            raise FrameError(f"a frame of kind {kind} may not come here")
        if size > self.most_bytes:
            raise FrameError(f"a frame of {size} bytes; at most {self.most_bytes} may come here")
        return at + HEAD.size + int(size)


class StallWatch:
    """Whether a frame that has begun to come goes on coming, at no less than 64 KiB in STALLED_S.
    To be asked every second or so."""

    def __init__(self, reader: FrameReader) -> None:
        self._reader = reader
        self._seen = (-1, 0)  # nothing was seen before
        self._since = 0.0

    def stalled(self, now: float) -> bool:
        """`now`: seconds on any one clock."""
        rest = self._reader.rest_bytes
        seen = (self._reader.frames, rest // PROGRESS_BYTES)
        if not rest or seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since > STALLED_S
