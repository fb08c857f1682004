"""What does a URL hold that a request names as its input?

Fetched by https from hosts that settings list, and from nowhere else: a name is resolved once, each
of its addresses must be one that may be connected to, and the connection goes to one of those, with
TLS for the name. Nothing is followed, no proxy is asked, nothing of the environment is sent; what
is taken is the plain content of a 200, bounded as it comes. What goes wrong is the caller's to know
(400): it chose the URL. Errors name the host, never the path or the query, which may be signed.
Each fetch has a connection of its own. Certificates are checked by those of `SSL_CERT_FILE`.
Source: OWASP, "Server-Side Request Forgery Prevention"; RFC 9110; RFC 2397; vLLM CVE-2025-6242.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import httpcore
import httpx

from deployments.contract.errors import BadRequest, BodyTooLarge
from deployments.gateway.http.protocols.tensors import OCTETS, Fetched
from deployments.gateway.inputs.addresses import Network, may_connect, networks_of
from deployments.settings.gateway import ReferenceSettings

MAX_AT_ONCE, MAX_OF_TENANT = 64, 16  # fetches of one gateway; the rest waits, tenants in turn
IDLE_S = 10.0  # a server that sends nothing for so long has failed
CONNECT_S = 3.0  # to one of a name's addresses
_ADDRESSES = 3  # of a name that are tried
_RESOLVERS = 32
MAX_URL = 8192
_URL = re.compile(
    r"https://(?P<host>[a-z0-9.-]{1,253})(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>(?:/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?(?:\?[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?)"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}(?=:)")
_DATA = re.compile(r"data:(?P<type>[^,;]{0,127})(?P<more>(?:;[^,;]{0,127}){0,8}),", re.IGNORECASE)
_MEDIA_TYPE = re.compile(r"[a-z]+/[a-z0-9.+-]{1,100}")
_HTTPS = 443
_OK = 200


class _Place(NamedTuple):
    host: str
    port: int
    target: str

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"


async def resolve(host: str, port: int, threads: ThreadPoolExecutor) -> list[str]:
    """The addresses of a name, as the system resolves it. Raises OSError."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.run_in_executor(
            threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
    except UnicodeError:
        raise OSError(f"{host} cannot be a name") from None
    return list(dict.fromkeys(str(address[4][0]) for address in found))


_ENCODING = b"content-encoding"


class Fetcher:
    """For one event loop. Its connections check certificates by `SSL_CERT_FILE` as it was when it
    was made."""

    def __init__(self, settings: ReferenceSettings) -> None:
        self._hosts, self.max_bytes = frozenset(settings.hosts), settings.max_bytes
        self._tls: ssl.SSLContext = httpx.create_ssl_context()
        self._backend = _Pinned(networks_of(settings.networks), min(_RESOLVERS, len(self._hosts)))
        self._all = asyncio.Semaphore(MAX_AT_ONCE)
        self._tenants: dict[str, asyncio.Semaphore] = {}
        # Its debug lines name URLs.
        logging.getLogger("httpcore").setLevel(logging.WARNING)

    async def fetch(
        self, tenant: str, label: str, url: str, hold: Callable[[int], None]
    ) -> Fetched:
        """`hold` is told the bytes that come, before they are kept, and may refuse them. Raises
        BadRequest that begins with `label`, BodyTooLarge, and what `hold` raises."""
        place = self._place(label, url)
        async with self._tenants.setdefault(tenant, asyncio.Semaphore(MAX_OF_TENANT)), self._all:
            try:
                return await self._fetched(place, label, hold)
            except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as e:
                raise _failed(label, f"{place.name} {_why(e)}") from None

    def _place(self, label: str, url: str) -> _Place:
        found = _URL.fullmatch(url) if len(url) <= MAX_URL else None
        if found is None:
            raise _wrong(label, _complaint(url))
        place = _Place(found["host"], int(found["port"] or _HTTPS), found["target"])
        if place.name not in self._hosts:
            raise _wrong(label, f"{place.name} is not one of gateway.references.hosts")
        return place

    async def _fetched(self, place: _Place, label: str, hold: Callable[[int], None]) -> Fetched:
        content = bytearray()
        async with self._answer(place, label) as answer:
            head = {name.lower(): value for name, value in answer.headers}
            encodings = [v for name, v in answer.headers if name.lower() == _ENCODING]
            head[_ENCODING] = b",".join(encodings) or b"identity"
            self._check(place, label, answer.status, head)
            async for part in answer.aiter_stream():
                if len(content) + len(part) > self.max_bytes:
                    raise self._too_large(label)
                hold(len(part))
                content += part
        said = head.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        media_type = said if _MEDIA_TYPE.fullmatch(said) else OCTETS
        return Fetched(memoryview(content).toreadonly(), media_type)

    @asynccontextmanager
    async def _answer(self, place: _Place, label: str) -> AsyncIterator[httpcore.Response]:
        origin = httpcore.Origin(b"https", place.host.encode(), place.port)
        target = place.target if place.target.startswith("/") else f"/{place.target}"
        host = place.host if place.port == _HTTPS else place.name
        limits = {"connect": CONNECT_S * _ADDRESSES, "read": IDLE_S, "write": IDLE_S}
        request = httpcore.Request(
            "GET",
            httpcore.URL(scheme=b"https", host=origin.host, port=place.port, target=target),
            headers=[
                ("Host", host), ("Accept", "*/*"), ("Accept-Encoding", "identity"),
                ("User-Agent", "headrace"), ("Connection", "close"),
            ],
            extensions={"timeout": limits},
        )  # fmt: skip
        connection = httpcore.AsyncHTTPConnection(
            origin, ssl_context=self._tls, network_backend=self._backend
        )
        try:
            yield await connection.handle_async_request(request)
        except _NotAllowed as refusal:
            raise _wrong(label, f"{place.host} {refusal}") from None
        finally:
            await connection.aclose()

    def _check(self, place: _Place, label: str, status: int, head: dict[bytes, bytes]) -> None:
        if 300 <= status < 400:
            raise _failed(label, f"{place.name} answered {status}; redirects are not followed")
        if status != _OK:
            raise _failed(label, f"{place.name} answered {status}, not 200")
        if head.get(b"content-encoding", b"identity").strip().lower() != b"identity":
            raise _failed(label, f"{place.name} sent a content-encoding; it must send plain bytes")
        length = head.get(b"content-length", b"")
        if not length and b"chunked" not in head.get(b"transfer-encoding", b"").lower():
            raise _failed(label, f"{place.name} did not say where its answer ends (no length)")
        if length.isdigit() and int(length[:18]) > self.max_bytes:
            raise self._too_large(label)

    def _too_large(self, label: str) -> BodyTooLarge:
        return BodyTooLarge(
            f"{label}: what its URL holds is larger than gateway.references.max_bytes "
            f"({self.max_bytes})"
        )


class _NotAllowed(Exception):
    """Of a name's addresses."""


class _Pinned(httpcore.AsyncNetworkBackend):
    """Connects to addresses that a name has now and that are all allowed. A name is looked up
    once at a time, in a thread of its own: one that hangs delays no other."""

    def __init__(self, networks: Sequence[Network], names: int) -> None:
        self._networks, self._inner = networks, httpcore.AnyIOBackend()
        self._threads = ThreadPoolExecutor(names, "headrace-resolver")
        self._lookups: dict[tuple[str, int], asyncio.Task[list[str]]] = {}

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises `_NotAllowed` and httpcore's errors."""
        try:
            addresses = await self._looked_up(host, port)
        except OSError:
            raise httpcore.ConnectError("name") from None
        if not addresses:
            raise httpcore.ConnectError("name")
        if not all(may_connect(address, self._networks) for address in addresses):
            raise _NotAllowed(
                "has an address that is neither public nor in gateway.references.networks"
            )
        failed: Exception = httpcore.ConnectTimeout()
        for address in addresses[:_ADDRESSES]:
            try:
                return await self._inner.connect_tcp(address, port, CONNECT_S)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed

    async def _looked_up(self, host: str, port: int) -> list[str]:
        key = host, port
        if key not in self._lookups:
            lookup = asyncio.ensure_future(resolve(host, port, self._threads))
            self._lookups[key] = lookup
            lookup.add_done_callback(partial(self._has_ended, key))
        return await asyncio.shield(self._lookups[key])

    def _has_ended(self, key: tuple[str, int], lookup: asyncio.Task[list[str]]) -> None:
        del self._lookups[key]
        if not lookup.cancelled():
            lookup.exception()  # whoever waited for it may have left


def from_data_url(label: str, url: str) -> Fetched:
    """What a `data:` URL holds. Raises BadRequest."""
    found = _DATA.match(url)
    if found is None:
        raise _wrong(label, "its data: URL must be data:TYPE;base64,CONTENT")
    written = url[found.end() :]
    media_type = found["type"].strip().lower() or OCTETS
    if not found["more"].lower().endswith(";base64"):
        return Fetched(memoryview(unquote_to_bytes(written)), media_type)
    try:
        return Fetched(memoryview(base64.b64decode(written, validate=True)), media_type)
    except ValueError as error:
        raise _wrong(label, f"its data: URL is not base64: {error}") from None


def _complaint(url: str) -> str:
    """Why it is no URL that may be fetched, without repeating it."""
    if len(url) > MAX_URL:
        return f"its URL has more than {MAX_URL} characters"
    scheme = _SCHEME.match(url)
    if scheme is None or scheme[0].lower() == "https":
        if "@" in url.partition("://")[2].partition("/")[0]:
            return "its URL must name no user; send a signed URL"
        return (
            "its URL must be https://HOST[:PORT]/PATH[?QUERY] in lower case up to the path, "
            "percent-encoded, without a fragment"
        )
    if scheme[0].lower() == "http":
        return "its URL must be https"
    return f"{scheme[0]}: is not fetched; send a signed https URL of the object"


def _why(error: Exception) -> str:
    if isinstance(error, httpcore.ConnectError) and str(error) == "name":
        return "is a name without an address"
    if isinstance(error.__cause__, ssl.SSLError):
        return "has no certificate that is trusted here, or no TLS (SSL_CERT_FILE)"
    if isinstance(error, httpcore.ConnectError | httpcore.ConnectTimeout):
        return "could not be connected to"
    if isinstance(error, httpcore.TimeoutException):
        return f"sent nothing for {IDLE_S:g} s"
    return "broke off its answer"


def _wrong(label: str, why: str) -> BadRequest:
    return BadRequest(f"{label}: {why}", param="url", reason="url_not_allowed")


def _failed(label: str, why: str) -> BadRequest:
    return BadRequest(f"{label}: {why}", param="url", reason="url_not_fetched")
