"""The gateway's own HTTP server, for callers, on the socket that this machine's supervisor holds.

A gateway that is killed loses what it has; who connects before its successor accepts waits in the
socket's queue, and none is refused. TLS ends here: renewed files count for new connections, and the
last good ones stay where new ones do not fit.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from functools import partial
from typing import Any

import uvicorn

from deployments.gateway.http.direct_protocol import DirectProtocol, DirectRules, WholeRequests
from deployments.gateway.http.fast_path import ASGIApp
from deployments.gateway.http.strict_protocol import LISTEN_QUEUE, StoppingServer
from deployments.process import listening_socket
from deployments.process.certificate_files import CertificateFiles
from deployments.settings.gateway import GatewaySettings, TlsSettings

_HAND_OVER_S = 10.0
_RENEWAL_S = 1.0
logger = logging.getLogger("headrace.gateway")


class DirectServer(StoppingServer):
    """Accepts until it stops; then it answers what it has, and its last connections end."""

    def __init__(self, app: ASGIApp, gateway: GatewaySettings) -> None:
        tls = gateway.tls
        protocol = partial(DirectProtocol, DirectRules.by(gateway))
        super().__init__(
            uvicorn.Config(
                WholeRequests(app, gateway),
                http=protocol,  # type: ignore[arg-type]
                ws="none",
                timeout_keep_alive=math.ceil(gateway.keep_alive_s),
                lifespan="off",
                access_log=False,
                log_config=None,
            )
        )
        self._handshake_s = gateway.limits.headers_timeout_s
        self._renewal = None if tls is None else CertificateRenewal(tls)
        self._holder: Any = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, holder_path: str) -> None:
        """Returns when it accepts. Raises OSError."""
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        received = partial(listening_socket.received, holder_path, _HAND_OVER_S)
        self._holder, listening = await asyncio.to_thread(received)
        loop = asyncio.get_running_loop()
        context = None if self._renewal is None else self._renewal.context
        accepting = await loop.create_server(
            self._connected,
            sock=listening,
            ssl=context,
            backlog=LISTEN_QUEUE,
            ssl_handshake_timeout=self._handshake_s if context else None,
        )
        self.servers, self.started = [accepting], True
        self._tasks.append(loop.create_task(self._run()))
        if self._renewal is not None:
            self._tasks.append(loop.create_task(self._renewal.follow()))

    def _connected(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state={}
        )
        return made

    async def _run(self) -> None:
        await self.main_loop()
        self._holder.close()  # so that the holder hears at once that nobody accepts here
        await self.shutdown()

    @property
    def open(self) -> int:
        """Connections that have not ended."""
        return len(self.server_state.connections)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


class CertificateRenewal:
    """`context`: each handshake takes the last files that fit. Raises ValueError where the first do
    not."""

    def __init__(self, tls: TlsSettings) -> None:
        self._tls = tls
        self._files = CertificateFiles(tls.certificate, tls.key, tls.client_ca or "")
        self._seen = self._files.stamp()
        if why := self._files.problem():
            raise ValueError(f"gateway.tls: {why}")
        self.context = self._last = self._made()
        self.context.sni_callback = self._handshake  # called without a name, too

    def _made(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.set_alpn_protocols(["http/1.1"])
        made.load_cert_chain(self._files.certificate, self._files.key)
        if self._files.client_ca:
            everyone = self._tls.client_ca_for == "everyone"
            made.verify_mode = ssl.CERT_REQUIRED if everyone else ssl.CERT_OPTIONAL
            made.load_verify_locations(self._files.client_ca)
        return made

    def _handshake(self, connection: ssl.SSLObject, *_: object) -> None:
        connection.context = self._last

    async def follow(self) -> None:
        while True:
            await asyncio.sleep(_RENEWAL_S)
            self.look()

    def look(self) -> None:
        """Take up files that have changed and fit. What does not is logged once."""
        stamp = self._files.stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        if why := self._files.problem():
            logger.warning("the certificate is not renewed: %s", why)
        else:
            self._last = self._made()
