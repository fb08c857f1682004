"""Frames: how messages are delimited on the connection between a gateway and a replica.

A frame is a head of 13 bytes, little-endian (size of the body, kind, lease id), then the body. A
lease id has a meaning on its own connection only. `messages`, `stream_messages` and `handshake`
define the bodies; frames without a body are all in their head.

The reader does no I/O: bytes in, whole frames out. It holds no more of a body than has arrived, and
refuses a head that announces a body over the limit before it reads any of that body.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

HEAD = Struct("<IBQ")
MAX_FRAME_BYTES = 1 << 30
MAX_HANDSHAKE_BYTES = 4096
STALLED_S, PROGRESS_BYTES = 10.0, 1 << 16  # a frame stalls below so many bytes in so many seconds
Buffer = bytes | bytearray | memoryview


class Kind(IntEnum):
    """Kinds of frames: who sends one, and what it says."""

    HELLO = 1  # gateway: who it is, and whom it wants
    CHALLENGE = 2  # replica: its proof, and what the gateway has to prove
    PROOF = 3  # gateway
    WELCOME = 4  # replica: the connection stands
    REFUSED = 5  # replica: why it does not
    BATCH = 10  # gateway: run these rows; one REPLY or FAULT follows
    BEGIN = 11  # gateway: run this request; STARTED and STEPS follow
    DROP = 12  # gateway: no caller waits for the batch; return it unless it has started
    ABORT = 13  # gateway: no caller waits for the request; end it
    WATCH = 14  # gateway: say when the batch starts
    CREDIT = 15  # gateway: bytes of STEPS taken in so far on this connection, as the lease id
    STARTED = 20  # replica: the lease runs
    REPLY = 21  # replica: the batch's answer
    FAULT = 22  # replica: its device failed the lease, and why
    STEPS = 23  # replica: what all of this gateway's requests have produced since the last STEPS
    GOAWAY = 24  # either: no new lease after this; the replica ends once it has seen the gateway's
    UNSENT = 25  # replica: it is well, but its answer could not be sent, and why


LATER_KINDS = range(32, 64)  # of versions to come: such a frame is skipped
GATEWAY_KINDS = frozenset(
    {Kind.BATCH, Kind.BEGIN, Kind.DROP, Kind.ABORT, Kind.WATCH, Kind.CREDIT, Kind.GOAWAY,
     *LATER_KINDS}
)  # fmt: skip
REPLICA_KINDS = frozenset(
    {Kind.STARTED, Kind.REPLY, Kind.FAULT, Kind.UNSENT, Kind.STEPS, Kind.GOAWAY, *LATER_KINDS}
)


class FrameError(Exception):
    """A frame that may not come here. The stream cannot be parsed any further."""


class Frame(NamedTuple):
    """One whole frame. `body` is a view of the bytes that were read together, and keeps them all
    in memory."""

    kind: Kind
    lease_id: int
    body: memoryview


def framed(kind: Kind, lease_id: int = 0, body: Sequence[Buffer] = ()) -> list[Buffer]:
    """The buffers of one frame, to be written in order. Raises FrameError for a body over the
    limit."""
    size = sum([len(part) for part in body])
    if size > MAX_FRAME_BYTES:
        raise FrameError(f"{size} bytes do not fit into one frame of {MAX_FRAME_BYTES}")
    return [HEAD.pack(size, kind, lease_id), *body]


class FrameReader:
    """Parses bytes into frames. `kinds`: those that may come; `max_bytes`: limit of a body. Both
    may be changed between frames, as happens after the handshake."""

    def __init__(self, kinds: frozenset[int], max_bytes: int = MAX_HANDSHAKE_BYTES) -> None:
        self.kinds = kinds
        self.max_bytes = max_bytes
        self.frames = 0  # whole frames so far
        self._rest = bytearray()  # the beginning of a frame that has not all arrived
        self._wanted = HEAD.size  # with fewer bytes the rest holds no whole frame

    @property
    def rest_bytes(self) -> int:
        """Bytes held of a frame that has not all arrived."""
        return len(self._rest)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole with `data`. The caller must take all of them. Raises
        FrameError at a frame that may not come, after the frames before it."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            whole: bytes | bytearray = self._rest
        else:
            whole = data  # mostly a read begins and ends with a frame, so nothing is copied
        view, at = memoryview(whole), 0
        while (end := self._end(view, at)) <= len(whole):
            _, kind, lease_id = HEAD.unpack_from(view, at)
            self.frames += 1
            if kind < LATER_KINDS.start:
                yield Frame(Kind(kind), lease_id, view[at + HEAD.size : end])
            at = end
        self._rest = bytearray(view[at:])
        self._wanted = end - at

    def _end(self, view: memoryview, at: int) -> int:
        """Where the frame that begins at `at` ends; where its head ends, if the head has not all
        arrived."""
        if len(view) - at < HEAD.size:
            return at + HEAD.size
        size, kind, _ = HEAD.unpack_from(view, at)
        if kind not in self.kinds:
            raise FrameError(f"a frame of kind {kind} may not come here")
        if size > self.max_bytes:
            raise FrameError(f"a frame of {size} bytes; at most {self.max_bytes} may come here")
        return at + HEAD.size + int(size)


class StallWatch:
    """Whether a frame that has begun to arrive has stalled: fewer than 64 KiB in STALLED_S. Ask
    about once a second."""

    def __init__(self, reader: FrameReader) -> None:
        self._reader = reader
        self._seen = (-1, 0)  # frames, and 64-KiB steps of the next one, at the last progress
        self._since = 0.0

    def stalled(self, now: float) -> bool:
        """`now`: seconds on any clock, the same one each time."""
        rest = self._reader.rest_bytes
        seen = (self._reader.frames, rest // PROGRESS_BYTES)
        if not rest or seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since > STALLED_S
