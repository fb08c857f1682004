"""A client that asks a gateway for an answer and reads its head alone, into a small buffer."""

from __future__ import annotations

import asyncio
import socket

BODY = b'{"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 1], "data": [4]}]}'


async def head_of(
    port: int, model: str, tenant: str, body: bytes = BODY
) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    """The answer's head, in lower case; nothing else of it is read."""
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    own.setblocking(False)
    await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=own, limit=4096)
    head = b"POST /v2/models/%b/infer HTTP/1.1\r\nhost: x\r\nx-tenant: %b\r\n"
    writer.write(head % (model.encode(), tenant.encode()))
    writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
    async with asyncio.timeout(20.0):
        return (await reader.readuntil(b"\r\n\r\n")).lower(), reader, writer
