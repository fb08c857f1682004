"""Callers of streamed completions: some read slowly, some leave early, the others read normally.

A caller sends its next request when its stream has ended, over a new connection. Connections have
small buffers, so that unread bytes accumulate at the server and not here. A stream is right if it
ends with `[DONE]`. Prompts and lengths are drawn from a seed.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from loadtests.benches.request_log import LoggedRequest
from loadtests.client.http1 import Target, render

READ_BYTES, BUFFER_BYTES = 1024, 4096
SLOW_PAUSE_S = 0.3  # between reads: 3.4 kB/s, of streams of about 5 kB/s
STREAM_S = 120.0
AGAIN_S = 1.0
_DONE = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class StreamCallers:
    """A closed loop of callers. Outcomes are given to `told`."""

    target: Target
    model: str
    number: int
    slow: int  # callers of `number` that read slowly
    told: Callable[[LoggedRequest], object]
    leaves: float = 0.1  # share of streams that their callers leave early

    async def run(self, over: asyncio.Event) -> None:
        """Runs until `over` is set; returns when every stream has ended."""
        await asyncio.gather(*(self._ask_again(number, over) for number in range(self.number)))

    async def _ask_again(self, number: int, over: asyncio.Event) -> None:
        drawn = random.Random(number)
        pause_s = SLOW_PAUSE_S if number < self.slow else 0.0
        while not over.is_set():
            began_s = time.monotonic()
            most = drawn.randrange(2, 40) if drawn.random() < self.leaves else 0
            answer = await self._stream(self._request(drawn), pause_s, most)
            why = "" if most and answer.startswith(b"HTTP/1.1 200") else why_not(answer)
            refused = why[:3] in ("429", "503") and b"\nretry-after:" in answer.lower()
            self.told(LoggedRequest(self.model, began_s, time.monotonic(), why, refused))
            if why:
                await asyncio.sleep(AGAIN_S)

    def _request(self, drawn: random.Random) -> bytes:
        prompt = [drawn.randrange(10, 250) for _ in range(drawn.randrange(8, 200))]
        body = {
            "model": self.model, "prompt": prompt, "max_tokens": drawn.randrange(20, 300),
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        headers = {"connection": "close", "x-timeout-ms": f"{STREAM_S * 1000:.0f}"}
        return render(self.target, json.dumps(body).encode(), headers=headers)

    async def _stream(self, request: bytes, pause_s: float, most: int) -> bytes:
        """The head and the last bytes of an answer, or the error that ended it.

        `most`: the number of reads after which the caller leaves; 0: it reads the whole answer.
        """
        answer = b""
        try:
            async with asyncio.timeout(STREAM_S):
                async with _connected(self.target) as (reader, writer):
                    writer.write(request)
                    reads = 0
                    while data := await reader.read(READ_BYTES):
                        answer = answer[:2048] + answer[2048:][-READ_BYTES:] + data
                        reads += 1
                        if reads == most:
                            break
                        await asyncio.sleep(pause_s)
        except (OSError, TimeoutError) as error:
            return answer + f" {type(error).__name__}: {error}".encode()
        return answer


@asynccontextmanager
async def _connected(
    target: Target,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection with small buffers, which is aborted at the end."""
    plain = socket.socket()
    try:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, (target.host, target.port))
        reader, writer = await asyncio.open_connection(sock=plain, limit=READ_BYTES)
    except BaseException:
        plain.close()
        raise
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def why_not(answer: bytes) -> str:
    """What is wrong with a complete answer; "" if nothing is."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head[9:12].decode("latin-1") if head.startswith(b"HTTP/1.1 ") else ""
    if status == "200" and _DONE in body and b'"error"' not in body:
        return ""
    if not status:
        return f"no answer {answer[-200:].decode('latin-1')}".strip()
    said = " ".join(body[-200:].decode("latin-1").split())
    if status != "200":
        return f"{status} {said}"
    return f"ended by an error: {said}" if b'"error"' in body else "cut off"
