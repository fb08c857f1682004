"""Which answers may a page of another origin read? Cross-origin resource sharing, `gateway.cors`.

A browser asks before it sends what a plain form could not (a preflight), and hands an answer to a
page only if it names the page's origin. Both are answered for every path but the operators', so a
page can read refusals and streams too. A listed origin is named exactly, with `Vary: Origin` on
every answer, since a cache may keep what it got for another one; `*` is said of every answer. A
server on a private network says that public pages may reach it. Without `gateway.cors` nothing of
this is sent. HAProxy says the same of its refusals (`control/ingress/haproxy_rules.py`).
Source: Fetch, "HTTP CORS protocol"; Private Network Access, "CORS preflight".
"""

from __future__ import annotations

from collections.abc import Sequence

from deployments.contract.errors import Forbidden
from deployments.settings.gateway import ANY_ORIGIN, CorsSettings

Headers = tuple[tuple[bytes, bytes], ...]
METHOD = b"access-control-request-method"
NO_CORS = (
    "pages of other hosts cannot call this server; list their origin in gateway.cors.origins, "
    "serve the page under the server's own host, or call it from your own server"
)
# What this server reads, and what OpenAI's and Anthropic's SDKs for browsers send.
READ = (
    "accept, anthropic-beta, anthropic-dangerous-direct-browser-access, anthropic-version, "
    "authorization, cache-control, content-encoding, content-type, idempotency-key, "
    "inference-header-content-length, traceparent, tracestate, x-api-key, x-idempotent, "
    "x-priority, x-request-id, x-request-start, x-request-timeout-seconds, x-session-id, "
    "x-tenant, x-timeout-ms, openai-organization, openai-project, x-stainless-arch, "
    "x-stainless-helper-method, x-stainless-lang, x-stainless-os, x-stainless-package-version, "
    "x-stainless-poll-helper, x-stainless-retry-count, x-stainless-runtime, "
    "x-stainless-runtime-version, x-stainless-timeout"
)
# What this server says besides what every page may read (Fetch, "CORS-safelisted response header").
SAID = (
    "allow, inference-header-content-length, request-id, retry-after, traceparent, x-batch-size, "
    "x-bucket, x-cache, x-coalesced, x-queue-wait-ms, x-request-id, x-served-by, "
    "x-service-time-ms"
)
_METHODS = b"GET, HEAD, POST"
_MAX_AGE_S = 7200  # browsers keep no preflight for longer
_OPERATORS = "/admin"


class CrossOrigin:
    """What `gateway.cors` says of an origin."""

    def __init__(self, cors: CorsSettings) -> None:
        named = frozenset(cors.origins) - {ANY_ORIGIN}
        credentials = [(b"access-control-allow-credentials", b"true")] * cors.credentials
        exposed = (b"access-control-expose-headers", SAID.encode())
        self._any = ANY_ORIGIN in cors.origins
        self._rest: Headers = (*credentials, exposed)
        self._varies: Headers = () if self._any else ((b"vary", b"Origin"),)
        self._of = {origin.encode(): self._naming(origin.encode()) for origin in named}
        self._of_any = self._naming(ANY_ORIGIN.encode())
        allowed = ", ".join([READ, *cors.headers])
        self._preflight: Headers = (
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", allowed.encode()),
            (b"access-control-max-age", b"%d" % _MAX_AGE_S),
        )

    def _naming(self, origin: bytes) -> Headers:
        return ((b"access-control-allow-origin", origin), *self._rest, *self._varies)

    def allows(self, origin: bytes | None, path: str) -> bool:
        """Whether its pages may call what is at this path, which was not decoded."""
        return (
            origin is not None
            and (self._any or origin in self._of)
            and not path.startswith(_OPERATORS)
        )

    def said(self, origin: bytes | None, path: str) -> Headers:
        """What every answer to a request with this `Origin` says, of whatever status."""
        if self._any:  # also to who names none: a cache may keep the answer for a page
            return () if path.startswith(_OPERATORS) else self._of_any
        if origin is None or not self.allows(origin, path):
            return self._varies
        return self._of[origin]

    def preflight(self, headers: dict[bytes, bytes], path: str) -> list[tuple[bytes, bytes]]:
        """What the answer to a preflight says besides. Raises Forbidden."""
        if not self.allows(headers.get(b"origin"), path):
            raise Forbidden(f"cross-origin request refused: {NO_CORS}", reason="foreign_origin")
        found = list(self._preflight)
        if headers.get(b"access-control-request-private-network") == b"true":
            found.append((b"access-control-allow-private-network", b"true"))
        return found


def cross_origin(cors: CorsSettings | None) -> CrossOrigin | None:
    return None if cors is None else CrossOrigin(cors)


def is_preflight(method: str, headers: dict[bytes, bytes]) -> bool:
    return method == "OPTIONS" and METHOD in headers and b"origin" in headers


def origin_of(headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """Of headers as they came, for who has no more than those."""
    return next((value for name, value in headers if name == b"origin"), None)
