"""The real HAProxy, started through the program in its place, before servers of a test."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from deployments.control.ingress import haproxy
from deployments.control.supervisor import ports

CONFIG = """\
global
    log 127.0.0.1:514 local0 info
    stats socket {folder}/admin.sock mode 666 level admin expose-fd listeners
    maxconn 1000
    nbthread 4
    tune.bufsize 16384
defaults
    mode http
    timeout connect 5s
    timeout server 60s
    timeout client 60s
    retry-on conn-failure
    option redispatch 1
    balance roundrobin
    errorfile 503 /dev/null
    option abortonclose
    option splice-request
    option splice-response
    option http-no-delay
    option idle-close-on-response
frontend prometheus
    bind :{metrics}
frontend http_frontend
    bind 127.0.0.1:{port}
{routes}    default_backend http-gateway
backend default_backend
    http-request return status 404
backend http-gateway
    http-reuse always
{servers}
{others}listen stats
    bind *:{stats}
"""


@contextlib.asynccontextmanager
async def in_front_of(
    *servers: asyncio.Server | int,
    folder: Path,
    wrapper: str = "",
    other: int = 0,
    fallback: int = 0,
    **told: object,
) -> AsyncIterator[str]:
    """The real HAProxy, with these, or what listens on these ports, as its gateways; its URL, once
    it listens. `wrapper`: the program in its place; "": one is made. `other`: the port of
    another application's replica, at /other, and `fallback` that of what stands in for
    gateways; 0: none. `told`: HEADRACE_HAPROXY_… by the end of its
    name."""
    wrapper = wrapper or str(haproxy.program(folder / "program", folder))
    (port, metrics, stats), config = ports.several_free(3), folder / "haproxy.cfg"
    lines = [
        f"    server SERVE_REPLICA_gateway-{n} 127.0.0.1:{_port(each)}"
        for n, each in enumerate(servers)
    ]
    if fallback:
        lines.append(f"    server SERVE_PROXY_ACTOR-fallback 127.0.0.1:{fallback} backup")
    own: dict[str, object] = {"metrics": metrics, "stats": stats, "routes": "", "others": ""}
    if other:
        own["routes"] = "    use_backend http-other if { path_beg /other }\n"
        own["others"] = f"backend http-other\n    server SERVE_REPLICA_other 127.0.0.1:{other}\n"
    config.write_text(CONFIG.format(port=port, servers="\n".join(lines), folder=folder, **own))
    environ = os.environ | {f"HEADRACE_HAPROXY_{name}": str(told[name]) for name in told}
    process = await asyncio.create_subprocess_exec(wrapper, "-db", "-f", str(config), env=environ)
    try:
        while not ((folder / "admin.sock").exists() and await listens(port)):  # it tells nobody
            assert process.returncode is None
            await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        for server in servers:
            if not isinstance(server, int):
                server.close()


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def _port(server: asyncio.Server | int) -> int:
    return server if isinstance(server, int) else server.sockets[0].getsockname()[1]
