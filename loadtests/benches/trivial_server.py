"""An HTTP server that does as little as possible, to measure the load generator itself.

`python -m loadtests.benches.trivial_server --port N`: answers every complete request (by its
Content-Length) with the same bytes and with the headers of Headrace's answers. An answer comes
`--delay-ms` after its request, plus an exponential time with the mean `--spread-ms`. With
`--stall-from S --stall-for S` the server answers nothing for a while, counted from its first
request, like a server that collects garbage or compiles a shape.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from dataclasses import dataclass, field
from typing import cast

_HEAD = (
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: 4711\r\n"
    "x-queue-wait-ms: 1.5\r\nx-service-time-ms: 7.2\r\nx-batch-size: 8\r\nx-bucket: 32\r\n"
)
BODY = (
    b'{"model_name":"device","outputs":[{"name":"out","shape":[1],"datatype":"FP32","data":[1]}]}'
)
ANSWER = f"{_HEAD}content-length: {len(BODY)}\r\n\r\n".encode() + BODY
_LENGTH = b"content-length:"


@dataclass(slots=True)
class Manner:
    """How requests are answered. `first_at`: time of the first request, on the loop's clock."""

    delay_s: float = 0.0
    spread_s: float = 0.0
    stall_from_s: float = 0.0
    stall_for_s: float = 0.0
    first_at: float = field(default=0.0)
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def pause_s(self, now: float) -> float:
        """Seconds that a request which comes now waits for its answer."""
        self.first_at = self.first_at or now
        ran_s = now - self.first_at
        left_s = self.stall_from_s + self.stall_for_s - ran_s
        stalled = self.stall_for_s > 0 and ran_s >= self.stall_from_s
        spread_s = self.rng.expovariate(1.0 / self.spread_s) if self.spread_s else 0.0
        return self.delay_s + spread_s + (max(0.0, left_s) if stalled else 0.0)


class TrivialServer(asyncio.Protocol):
    """The protocol of one connection."""

    def __init__(self, manner: Manner) -> None:
        self._manner = manner
        self._buffer = b""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (size := whole_bytes(self._buffer)) is not None:
            self._buffer = self._buffer[size:]
            pause_s = self._manner.pause_s(self._loop.time())
            if pause_s:
                self._loop.call_later(pause_s, self._transport.write, ANSWER)
            else:
                self._transport.write(ANSWER)


def whole_bytes(data: bytes) -> int | None:
    """The length of the first request in `data`; None while it is incomplete."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    at = data.lower().find(_LENGTH, 0, end)
    length = 0 if at < 0 else int(data[at + len(_LENGTH) : data.find(b"\r", at)])
    return end + 4 + length if len(data) >= end + 4 + length else None


async def serve(port: int, manner: Manner) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: TrivialServer(manner), "127.0.0.1", port, backlog=4096
    )
    async with server:
        await server.serve_forever()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.benches.trivial_server", description=__doc__
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--spread-ms", type=float, default=0.0)
    parser.add_argument("--stall-from", type=float, default=0.0, help="s from the first request")
    parser.add_argument("--stall-for", type=float, default=0.0, help="s")
    parser.add_argument("--seconds", type=float, default=600.0, help="then it ends")
    asked = parser.parse_args(argv)
    times_s = (asked.delay_ms / 1e3, asked.spread_ms / 1e3)
    manner = Manner(*times_s, asked.stall_from, asked.stall_for)

    async def bounded() -> None:
        await asyncio.wait_for(serve(asked.port, manner), asked.seconds)

    try:
        import uvloop

        uvloop.run(bounded())
    except (TimeoutError, KeyboardInterrupt):
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
