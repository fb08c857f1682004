"""Refuses what HAProxy would, where callers reach the gateway itself (`gateway.ingress: direct`).

The rules are those of `control/ingress/haproxy_rules.py`, whose docstring says why; tests/hostile
asks both the same. What two readers may understand differently is refused, headers that say where a
request came from are dropped unless a trusted proxy sent them, and connections are bounded: over
four fifths of all, addresses that have a tenth are refused.
A request begins when its body is there, or as much of it as HAProxy would have waited for: a slow
small body holds a connection and nothing else.
When the server stops, an idle connection gets a moment to be used once more: its caller may be
sending just then. That answer says `connection: close`.
"""

from __future__ import annotations

import asyncio
import re
import resource
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import httptools

from deployments.contract import errors
from deployments.gateway.http import forwarded
from deployments.gateway.http.cors import CrossOrigin, cross_origin, origin_of
from deployments.gateway.http.exchange import Exchange
from deployments.gateway.http.fast_path import ASGIApp, Receive, Scope, Send
from deployments.gateway.http.protocols import error_shapes
from deployments.gateway.http.protocols.tensors import Encoded
from deployments.gateway.http.strict_protocol import StrictProtocol
from deployments.settings.gateway import GatewaySettings

_MAX_TAKEN, _SOURCE_SHARE = 0.8, 0.1  # of the connections, as HAProxy's
_OTHER_FILES = 500  # that a gateway has open besides its callers' connections
_FEWEST = 100
_LAST_S = 1.0  # for an idle connection, when the server stops
_WHOLE_BYTES = 16_384  # of a body, which is waited for
_HEALTH = b"/-/healthz"  # that Kubernetes' and load balancers' checks ask
_NAME = b"0123456789abcdefghijklmnopqrstuvwxyz-"
_REFUSED_PATH = re.compile(
    rb"/\.\.?(/|$)|//|%(2[ef]|5c|00)|%(?![0-9a-f]{2})|^/%2d/|^/-/(?-i:(?!healthz$))|^(?!/)",
    re.IGNORECASE,
)
_OPERATORS = b"/admin"
_LONGEST_KEPT = 256


class Connections:
    """Those that callers have open, by the address they come from: of IPv6 its first 64 bits.
    `most`: that there may be; `of_source`: of one address, 0: any number until few are left;
    `trusted`: networks that count for nobody."""

    def __init__(self, most: int, of_source: int, trusted: Sequence[str]) -> None:
        self._most = most
        self._of_source = of_source or most
        self._networks = [ip_network(each, strict=False) for each in trusted]
        self._by_source: Counter[object] = Counter()
        self._taken = 0

    @classmethod
    def by(cls, gateway: GatewaySettings) -> Connections:
        """As many as this process may have files open; its limit is raised as far as it may be."""
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        most = 1 << 20 if files == resource.RLIM_INFINITY else max(files - _OTHER_FILES, _FEWEST)
        return cls(most, gateway.limits.connections_per_source, gateway.trusted_proxies)

    def source(self, address: str) -> object:
        """What an address counts as; None for one of a trusted network."""
        found = _plain(address)
        if any(found in each for each in self._networks):
            return None
        return int(found) >> 64 if isinstance(found, IPv6Address) else found

    def is_trusted(self, address: str) -> bool:
        return self.source(address) is None

    def take(self, source: object) -> bool:
        """Whether one more may come from there; if so, it is counted until `give`."""
        own = self._by_source[source] + 1
        if self._taken >= self._most:
            return False
        if source is not None:
            few_are_left = self._taken >= self._most * _MAX_TAKEN
            share = self._most * _SOURCE_SHARE if few_are_left else self._most
            if own > min(self._of_source, share):
                return False
        self._taken += 1
        self._by_source[source] = own
        return True

    def give(self, source: object) -> None:
        self._taken -= 1
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]


def _plain(address: str) -> Any:
    found = ip_address(address.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found


class DirectRules(NamedTuple):
    """What all connections share. `operators_certificate`: `/admin` needs one; `cors`: what pages
    of other origins are told, None: nothing; `path_prefix`: is taken off paths that have it."""

    connections: Connections
    operators_certificate: bool = False
    cors: CrossOrigin | None = None
    path_prefix: bytes = b""

    @classmethod
    def by(cls, gateway: GatewaySettings) -> DirectRules:
        tls = gateway.tls
        operators = tls is not None and tls.client_ca_for == "operators" and bool(tls.client_ca)
        prefix = (gateway.path_prefix or "").encode()
        return cls(Connections.by(gateway), operators, cross_origin(gateway.cors), prefix)


class DirectProtocol(StrictProtocol):
    """One caller's connection."""

    def __init__(self, rules: DirectRules, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._open = rules.connections
        self._rules = rules
        self._source: object = None
        self._counted = self._trusted = self._encrypted = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._encrypted = transport.get_extra_info("ssl_object") is not None
        if self.client:  # else it has left already
            self._source = self._open.source(self.client[0])
            self._trusted = self._source is None
            self._counted = self._open.take(self._source)
        if not self._counted:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._counted:
            self._counted = False
            self._open.give(self._source)
        super().connection_lost(exc)

    def check_head(self) -> None:
        fields = dict(self.headers)
        if not forwarded.NAMES.isdisjoint(fields):
            self._take_proxies_word()
        if self._encrypted and all(name != forwarded.PROTO for name, _ in self.headers):
            self.headers.append((forwarded.PROTO, b"https"))
        if self._rules.path_prefix:
            self._take_prefix_off()
        path = self._path()
        if b"".join(fields).translate(None, _NAME):
            raise errors.BadRequest("a header's name may have letters, digits and dashes")
        if b"host" not in fields and path != _HEALTH:  # a load balancer's check may be of HTTP/1.0
            raise errors.BadRequest("a request must name its Host")
        if _is_refused(path):
            raise errors.NotFound("no such path")
        if (
            self._rules.operators_certificate
            and _is_operators(path)
            and not self._has_certificate()
        ):
            raise errors.Forbidden("the operator pages need a client certificate")

    def _take_proxies_word(self) -> None:
        if not self._trusted or self.client is None:
            self.headers[:] = forwarded.from_untrusted(self.headers)
            return
        is_trusted = self._open.is_trusted
        self.headers[:] = forwarded.from_trusted(self.headers, self.client[0], is_trusted)

    def _take_prefix_off(self) -> None:
        """And say so, for documents that name it."""
        prefix = self._rules.path_prefix
        self.url, was = self._without_prefix(), self.url
        if self.url != was:
            outer = [value for name, value in self.headers if name == forwarded.PREFIX][-1:]
            self.headers[:] = [each for each in self.headers if each[0] != forwarded.PREFIX]
            self.headers.append((forwarded.PREFIX, b"".join(outer).rstrip(b"/") + prefix))

    def _without_prefix(self) -> bytes:
        prefix, path = self._rules.path_prefix, self._path()
        if not prefix or not path.startswith(prefix) or path[len(prefix) :][:1] not in (b"", b"/"):
            return self.url
        at = self.url.index(path, 0 if self.url.startswith(b"/") else self.url.index(b"//") + 2)
        bare = path[len(prefix) :] or b"/"
        return self.url[:at] + bare + self.url[at + len(path) :]

    def shown_path(self) -> bytes:
        return self._without_prefix().partition(b"?")[0]

    def said_to_pages(self) -> Iterable[tuple[bytes, bytes]]:
        if self._rules.cors is None:
            return ()
        return self._rules.cors.said(origin_of(self.headers), self.shown_path().decode("latin-1"))

    def _path(self) -> bytes:
        if self.url.startswith(b"/"):
            return self.url.partition(b"?")[0]
        try:
            return httptools.parse_url(self.url).path or b""
        except httptools.HttpParserInvalidURLError:
            return b""

    def _has_certificate(self) -> bool:
        found = self.transport.get_extra_info("ssl_object")
        return found is not None and bool(found.getpeercert())

    def shutdown(self) -> None:
        """The server accepts no more connections."""
        self._stops = True
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(_LAST_S, self._close_idle)
        else:
            self.cycle.keep_alive = False

    def _close_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def _is_refused(path: bytes) -> bool:
    """Callers choose paths: long ones are not kept."""
    return _kept_refusal(path) if len(path) <= _LONGEST_KEPT else _has_refused(path)


@lru_cache(maxsize=1024)
def _kept_refusal(path: bytes) -> bool:
    return _has_refused(path)


def _has_refused(path: bytes) -> bool:
    return _REFUSED_PATH.search(path) is not None


def _is_operators(path: bytes) -> bool:
    """As a server may read it: decoded, and in any case."""
    return unquote_to_bytes(path).lower().startswith(_OPERATORS)


class WholeRequests:
    """The app, asked once a body is there. `body_s`: how long that may take; what is declared as
    longer than `max_body_bytes` is not waited for, since the app refuses it by its head."""

    def __init__(self, app: ASGIApp, gateway: GatewaySettings) -> None:
        self._app = app
        self._body_s = gateway.limits.body_timeout_s
        self._max_body_bytes = gateway.limits.max_body_bytes
        self._cors = cross_origin(gateway.cors)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["raw_path"] == _HEALTH:
            await Exchange(scope, receive, send).reply(200, Encoded(b"success", b"text/plain"))
            return
        cycle = receive.__self__  # type: ignore[attr-defined]
        if cycle.more_body and self._is_waited_for(scope):
            try:
                async with asyncio.timeout(self._body_s):
                    await _until_there(cycle)
            except TimeoutError:
                await self._refuse(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_waited_for(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name == b"content-length":
                return int(value) <= self._max_body_bytes
        return True

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        late = errors.BodyTimeout(
            f"the body did not arrive within {self._body_s:g} s (gateway.limits.body_timeout_s)"
        )
        exchange = Exchange(scope, receive, send)
        if self._cors is not None:
            exchange.cors = self._cors.said(exchange.headers.get(b"origin"), exchange.path)
        answer = error_shapes.of_path(exchange.path)(late)
        await exchange.reply(late.status, answer, [(b"connection", b"close")])


async def _until_there(cycle: Any) -> None:
    if cycle.waiting_for_100_continue and not cycle.transport.is_closing():
        cycle.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        cycle.waiting_for_100_continue = False
    while cycle.more_body and not cycle.disconnected and len(cycle.body) < _WHOLE_BYTES:
        cycle.message_event.clear()
        await cycle.message_event.wait()
