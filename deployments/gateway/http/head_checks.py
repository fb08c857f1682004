"""What a request's headers may not say: the same thing twice, a Host that is no name of ours where
anybody may call, and that a page of somebody else's sent them.

Two readers of a request may each take another of two equal headers, so those that say who it is or
how it is to be read stand there once. A server without keys is open to whoever reaches it; the
browser of somebody who reaches it must not be their way in. A page may point a name of its own at
this machine (DNS rebinding): its Host is that name, so Hosts are checked: addresses, which nobody
can point elsewhere, names without a dot and those that only a private network resolves pass;
others stand in `gateway.allowed_hosts`. Health and readiness answer by any name: they say nothing
of anybody. A page may send without reading the answer: its Origin is
foreign, so what changes something or runs a model is refused. Where a key is needed a browser has
none to send, and neither is looked at, but for the operator's pages. Nobody lets pages of other
hosts read answers: no `Access-Control-Allow-Origin` is ever sent (CORS).

It costs 0.3 us a request: a Host that passed is remembered.
Source: RFC 9110 §7.2; Fetch, "Origin" and "Sec-Fetch-Site"; Ray's CVE-2025-62593.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence

from deployments.contract.errors import BadRequest, Forbidden
from deployments.gateway.http.exchange import Exchange

_ONCE = frozenset(
    b"authorization content-encoding content-length content-type expect host idempotency-key"
    b" inference-header-content-length origin transfer-encoding x-idempotent x-priority"
    b" x-request-id x-request-timeout-seconds x-session-id x-tenant x-timeout-ms".split()
)
_HOST = re.compile(rb"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")
# Names that no public DNS has. Source: RFC 2606, 6762, 8375; ICANN's reservation of `.internal`.
_PRIVATE = (
    ".localhost", ".svc", ".cluster.local", ".internal", ".local", ".lan", ".home.arpa", ".test",
)  # fmt: skip
_HEALTH = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
_SAFE = ("GET", "HEAD")
_OWN_SITES = (b"same-origin", b"none")
_MAX_REMEMBERED = 1024
ANY = "*"
NO_CORS = (
    "pages of other hosts cannot call this server (it supports no CORS); serve the page under the "
    "server's own host, or call it from your own server"
)


class HeadChecks:
    """`allowed`: further names, `*.` before one for all below it, `*` for any; `open_to_all`: says
    whether no key is needed."""

    def __init__(self, allowed: Sequence[str], open_to_all: Callable[[], bool]) -> None:
        self._names = frozenset(name for name in allowed if not name.startswith(ANY))
        self._below = tuple(name[1:] for name in allowed if name.startswith("*."))
        self._any = ANY in allowed
        self._open_to_all = open_to_all
        self._passed: set[bytes] = set()

    def check(self, exchange: Exchange, raw: Sequence[tuple[bytes, bytes]]) -> None:
        """`raw`: all headers as they came. Raises BadRequest and Forbidden."""
        if len(raw) != len(exchange.headers):
            _refuse_repeated(raw)
        operators = exchange.path.startswith("/admin")
        if exchange.path in _HEALTH:
            return
        if self._open_to_all():
            self._check_host(exchange.headers.get(b"host"))
        elif not operators:
            return
        if operators or exchange.method not in _SAFE:
            self._check_origin(exchange)

    def _check_host(self, host: bytes | None) -> None:
        if host is None or host in self._passed or self._any:
            return
        name = _name(host)
        if not self._is_ours(name):
            raise Forbidden(
                f"Host {name} is not allowed where no key is needed; add it to "
                "gateway.allowed_hosts, or set gateway.auth: required",
                reason="unknown_host",
            )
        if len(self._passed) >= _MAX_REMEMBERED:
            self._passed.clear()
        self._passed.add(host)

    def _is_ours(self, name: str) -> bool:
        return (
            "." not in name or self._is_listed(name) or name.endswith(_PRIVATE) or _is_address(name)
        )

    def _is_listed(self, name: str) -> bool:
        return name in self._names or name.endswith(self._below)

    def _check_origin(self, exchange: Exchange) -> None:
        origin, site = exchange.headers.get(b"origin"), exchange.headers.get(b"sec-fetch-site")
        if origin is None and (site is None or site in _OWN_SITES):
            return
        if origin is not None and self._is_own(origin, exchange.headers.get(b"host")):
            return
        raise Forbidden(
            f"cross-origin request refused: {NO_CORS}. If a proxy in between changes the Host, add "
            "the page's host to gateway.allowed_hosts",
            reason="foreign_origin",
        )

    def _is_own(self, origin: bytes, host: bytes | None) -> bool:
        _, found, authority = origin.partition(b"://")
        if not found or not _HOST.fullmatch(authority):
            return False
        return authority == host or self._any or self._is_listed(_name(authority))


def _refuse_repeated(raw: Sequence[tuple[bytes, bytes]]) -> None:
    seen: set[bytes] = set()
    for name, _ in raw:
        if name in seen and name in _ONCE:
            raise BadRequest(f"duplicate header {name.decode()}", reason="repeated")
        seen.add(name)


def _name(host: bytes) -> str:
    """In lower case, without the port. Raises BadRequest."""
    found = _HOST.fullmatch(host)
    if found is None:
        raise BadRequest("the Host header must be a name or an address, and a port", param="host")
    return found[1].decode().lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
