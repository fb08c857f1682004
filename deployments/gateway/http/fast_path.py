"""Lets requests reach the gateway without Serve's per-request wrapper around the ASGI app.

Serve's direct ingress builds a request context, two tasks and several metrics for every request;
that is most of what a bare replica costs, and the gateway needs none of it: it has its own
metrics, deadlines and disconnect watch, and its dispatch must run outside request contexts anyway.
Serve adds the middlewares of RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH outside that wrapper, in
every process that listens; this one passes requests to the gateway living in the same process and
everything else (`/-/healthz`, `/-/routes`, processes without a gateway) on to Serve. It also tells
`headrace-haproxy` what the gateway's settings say of HAProxy.
Measured gain: docs/decisions/0001-fast-path.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.middleware import Middleware
from starlette.responses import Response

from deployments.gateway.http import strict_protocol

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_gateway: ASGIApp | None = None
_for_haproxy: tuple[bytes, bytes] = (b"", b"")


def install(app: ASGIApp, for_haproxy: tuple[bytes, bytes]) -> None:
    """Makes `app` this process's gateway; called once it may take requests. `for_haproxy`: a path
    and what is answered there (`deployments.contract.haproxy_settings`)."""
    global _gateway, _for_haproxy
    _gateway, _for_haproxy = app, for_haproxy


class FastPath:
    def __init__(self, app: ASGIApp) -> None:
        self._serve = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _gateway is None or scope["type"] == "lifespan":
            await self._serve(scope, receive, send)
        elif scope["raw_path"] == _for_haproxy[0]:
            await Response(_for_haproxy[1], media_type="text/plain")(scope, receive, send)
        elif scope["raw_path"].startswith(b"/-/"):
            await self._serve(scope, receive, send)
        else:
            await _gateway(scope, receive, send)


def middlewares() -> list[Middleware]:
    """What Serve imports by name, before it starts its HTTP server."""
    strict_protocol.enforce()
    return [Middleware(FastPath)]
