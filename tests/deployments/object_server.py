"""An https server on this machine that gives objects as well or as badly as a test wants, and the
name that it has for a gateway."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority

from deployments.gateway.inputs import fetching

HOST = "objects.test"
Reply = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def answer(content: bytes, *headers: str, status: str = "200 OK") -> bytes:
    head = [f"HTTP/1.1 {status}", f"content-length: {len(content)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + content


@dataclass
class ObjectServer:
    """`objects`: what each path is answered with, byte for byte, or by writing; `addresses`: what
    the name resolves to, a list for each look-up in turn, the last one for all further. `heads`: of
    the requests so far; `open`: connections that are open."""

    objects: dict[str, Reply] = field(default_factory=dict)
    addresses: list[list[str]] = field(default_factory=lambda: [["127.0.0.1"]])
    heads: list[str] = field(default_factory=list)
    looked_up: list[str] = field(default_factory=list)
    open: int = 0
    port: int = 0

    def url(self, path: str) -> str:
        return f"https://{HOST}:{self.port}{path}"

    def settings(self, **more: Any) -> dict[str, Any]:
        """`gateway.references`."""
        return {"hosts": [f"{HOST}:{self.port}"], "networks": ["127.0.0.0/8"], **more}

    async def resolve(self, host: str, port: int, threads: Any) -> list[str]:
        self.looked_up.append(host)
        return self.addresses.pop(0) if len(self.addresses) > 1 else self.addresses[0]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                path = head.split()[1].partition("?")[0]
                reply = self.objects.get(path, answer(b"", status="404 Not Found"))
                if isinstance(reply, bytes):
                    writer.write(reply)
                    await writer.drain()
                else:
                    await reply(writer)
        finally:
            writer.close()
            self.open -= 1


@asynccontextmanager
async def serving(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str = HOST
) -> AsyncIterator[ObjectServer]:
    """Trusted by gateways that are made meanwhile. `name`: of its certificate."""
    server, authority = ObjectServer(), Authority(folder, "objects")
    files = authority.tls(name=name)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.certificate, files.key)
    monkeypatch.setenv("SSL_CERT_FILE", authority.file)
    monkeypatch.setattr(fetching, "resolve", server.resolve)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
