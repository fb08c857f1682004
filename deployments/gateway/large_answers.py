"""How is an answer sent that is too large to encode at once?

A piece at a time: the thread pool makes it, in the tenant's turn, when the client has taken the one
before. So the event loop and other tenants wait for milliseconds, and what an answer takes of
memory is what it is made of, which was held for it before it was queued.

- An answer that turns out short (`WHOLE_BYTES`) has a `Content-Length`, like any other. A longer
  one is sent in chunks: how long it becomes is known at its end.
- What is wrong with an answer is found before its first piece, when it can still be refused.
- Once a part was sent, a full pool ends no answer: pieces are then made on the event loop.
"""

from __future__ import annotations

from deployments.contract import errors
from deployments.gateway.http.answer_bounds import AnswerSize
from deployments.gateway.http.exchange import Exchange, run_until_disconnect
from deployments.gateway.http.protocols.pieces import LargeAnswer
from deployments.gateway.http.protocols.slices import Breaks
from deployments.gateway.http.protocols.types import Encoded
from deployments.gateway.preprocess.fair_thread_pool import FairThreadPool

WHOLE_BYTES = 2 << 20


def held_at_once(size: AnswerSize) -> int:
    """What the gateway holds of an answer: its outputs, and as much of their encoding as is there
    at one time."""
    return size.held + min(size.sent, WHOLE_BYTES)


async def beginning(answer: LargeAnswer, pool: FairThreadPool, tenant: str) -> Encoded:
    """The whole answer if it is short, else its beginning. Raises what is wrong with the answer,
    and Overloaded."""
    made: list[bytes] = []
    size, more = 0, True
    while more and size <= WHOLE_BYTES:
        part, more = await pool.run(tenant, _take, answer)
        made.append(part)
        size += len(part)
    return Encoded(b"".join(made), answer.content_type, answer.headers, more)


async def send(
    exchange: Exchange,
    beginning: Encoded,
    headers: list[tuple[bytes, bytes]],
    answer: LargeAnswer,
    pool: FairThreadPool,
    tenant: str,
) -> int:
    """Sends the answer from its beginning to its end; its bytes. Ends early, in silence, where the
    client leaves."""
    gone = False

    def left() -> None:
        nonlocal gone
        gone = True

    async def rest() -> int:
        await exchange.begin(beginning, headers)
        size, more = len(beginning.body), True
        beginning.body = b""
        while more and not gone:
            try:
                part, more = await pool.run(tenant, _take, answer)
            except errors.Overloaded:
                part, more = answer.take()
            size += len(part)
            if part:
                await exchange.send_chunk(part)
        await exchange.end_stream()
        return size

    sent = await run_until_disconnect(exchange, rest(), left)
    if gone:
        raise errors.CallerLeft("the client disconnected before it had its answer")
    return sent


def _take(answer: LargeAnswer) -> tuple[bytes, bool]:
    return answer.take(Breaks())
