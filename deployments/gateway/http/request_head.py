"""The head of a request: which headers are accepted, what its path names, when it was sent.

Headers that say who a request is or how it is read stand there once, since two readers may take
different ones of two. Where no key is needed, the Host must be an address, a name without a dot, a
private network's or in `gateway.allowed_hosts` (DNS rebinding), and a foreign Origin may change or
run nothing unless `gateway.cors` lists it. It costs 0.3 us per request.
Paths are matched as they were sent, as HAProxy's rules read them: only names, and the colon before
an action, may be percent-encoded. `x-request-start` gives the time on the way here, in any of the
units that proxies write; what makes no sense is left out.
Source: RFC 9110 §7.2; Fetch, "Origin"; Ray's CVE-2025-62593; RFC 3986 §2.4, §6.2.2.2.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from deployments.contract.errors import BadRequest, Forbidden
from deployments.gateway.http.cors import NO_CORS, CrossOrigin
from deployments.gateway.http.exchange import AUTHORITY, Exchange

_ONCE = frozenset(
    b"authorization content-encoding content-length content-type expect host idempotency-key"
    b" inference-header-content-length origin transfer-encoding x-idempotent x-priority"
    b" x-request-id x-request-timeout-seconds x-session-id x-tenant x-timeout-ms x-api-key".split()
)
# Names that no public DNS has. Source: RFC 2606, 6762, 8375; ICANN's reservation of `.internal`.
_PRIVATE = (
    ".localhost", ".svc", ".cluster.local", ".internal", ".local", ".lan", ".home.arpa", ".test",
)  # fmt: skip
_HEALTH = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
_SAFE = ("GET", "HEAD")
_PAGES = frozenset((b"origin", b"sec-fetch-site"))  # what browsers send with a page's request
_OWN_SITES = (b"same-origin", b"none")
_MAX_REMEMBERED = 1024
ANY = "*"


class HeadChecks:
    """`allowed`: further names, `*.` before one for all below it, `*` for any; `open_to_all`: says
    whether no key is needed; `cors`: knows other origins whose pages may call this server."""

    def __init__(
        self,
        allowed: Sequence[str],
        open_to_all: Callable[[], bool],
        cors: CrossOrigin | None = None,
    ) -> None:
        self.cors = cors
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
        if (operators or exchange.method not in _SAFE) and not _PAGES.isdisjoint(exchange.headers):
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
        if self.cors is not None and self.cors.allows(origin, exchange.path):
            return
        raise Forbidden(
            f"cross-origin request refused: {NO_CORS}. If a proxy in between changes the Host, add "
            "the page's host to gateway.allowed_hosts",
            reason="foreign_origin",
        )

    def _is_own(self, origin: bytes, host: bytes | None) -> bool:
        _, found, authority = origin.partition(b"://")
        if not found or not AUTHORITY.fullmatch(authority):
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
    found = AUTHORITY.fullmatch(host)
    if found is None:
        raise BadRequest("the Host header must be a name or an address, and a port", param="host")
    return found[1].decode().lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class Route(NamedTuple):
    """`endpoint`: what to call; `methods`: what it takes; the others: parts of the path."""

    endpoint: str
    methods: tuple[str, ...]
    model: str | None = None
    version: str | None = None
    adapter: str = ""
    alias: str = ""  # that the path has instead of the model's own name, once it is known
    region: str = ""  # of shared memory


_FIXED = {
    "/v1/embeddings": Route("embeddings", ("POST",)),
    "/pooling": Route("pooling", ("POST",)),
    "/embed_sparse": Route("embed_sparse", ("POST",)),
    "/v1/classify": Route("classify_texts", ("POST",)),
    "/classify": Route("classify_texts", ("POST",)),
    "/v1/rerank": Route("rerank", ("POST",)),
    "/v2/rerank": Route("rerank_v2", ("POST",)),
    "/rerank": Route("rerank_v2", ("POST",)),
    "/v1/score": Route("score", ("POST",)),
    "/v1/completions": Route("completions", ("POST",)),
    "/v1/chat/completions": Route("chat", ("POST",)),
    "/v1/messages": Route("messages", ("POST",)),
    "/v1/messages/count_tokens": Route("count_tokens", ("POST",)),
    "/v1/responses": Route("responses", ("POST",)),
    "/tokenize": Route("tokenize", ("POST",)),
    "/detokenize": Route("detokenize", ("POST",)),
    "/v1/models": Route("openai_models", ("GET", "HEAD")),
    "/v2": Route("server_metadata", ("GET", "HEAD")),
    "/v2/health/live": Route("live", ("GET", "HEAD")),
    "/v2/health/ready": Route("ready", ("GET", "HEAD")),
    # As in Triton; a model of that name has its metadata below its version.
    "/v2/models/stats": Route("all_statistics", ("GET", "HEAD")),
    "/v2/repository/index": Route("repository_index", ("POST",)),
    "/v2/systemsharedmemory/status": Route("region_status", ("GET", "HEAD")),
    "/v2/systemsharedmemory/unregister": Route("region_unregister", ("POST",)),
    "/v2/cudasharedmemory/status": Route("cuda_status", ("GET", "HEAD")),
    "/v2/cudasharedmemory/unregister": Route("cuda_unregister", ("POST",)),
    "/metrics": Route("metrics", ("GET", "HEAD")),
    "/healthz": Route("live", ("GET", "HEAD")),
    "/readyz": Route("ready", ("GET", "HEAD")),
    "/admin/status": Route("admin_status", ("GET",)),
    "/admin/controllers": Route("admin_controllers", ("PUT",)),
    "/admin/keys": Route("admin_keys", ("GET",)),
    "/admin/keys/revoke": Route("admin_revoke", ("POST",)),
    "/openapi.json": Route("openapi", ("GET", "HEAD")),
    "/docs": Route("docs", ("GET", "HEAD")),
    "/docs/swagger-ui.css": Route("docs_file", ("GET", "HEAD")),
    "/docs/swagger-ui-bundle.js": Route("docs_file", ("GET", "HEAD")),
    "/docs/favicon.png": Route("docs_file", ("GET", "HEAD")),
}
_ACTIONS = {
    "": ("model_metadata", ("GET", "HEAD")),
    "infer": ("infer", ("POST",)),
    "ready": ("model_ready", ("GET", "HEAD")),
    "config": ("model_config", ("GET", "HEAD")),
    "stats": ("model_statistics", ("GET", "HEAD")),
}
_V1_ACTIONS = ("predict", "classify")
_REGIONS = {"/v2/systemsharedmemory/region/": "region", "/v2/cudasharedmemory/region/": "cuda"}
_REGION_ACTIONS = {"status": ("GET", "HEAD"), "register": ("POST",), "unregister": ("POST",)}


# Of Triton's HTTP extensions that change the server: who sets what they set; of others, why not.
_NOT_SERVED = (
    (re.compile(r"/v2/(models/[^/]+/)?trace/setting"), "spans are set up by gateway.tracing"),
    (re.compile(r"/v2/logging"), "logs are set up by gateway.log"),
    (re.compile(r"/v2/repository/models/[^/]+/(un)?load"),
     "models come and go by `headrace apply`"),
    (re.compile(r"/v1/(responses|conversations|files)/.+"), "nothing is kept here"),
    (re.compile(r"/v1/messages/batches(/.+)?"), "send each message by itself"),
)  # fmt: skip


def not_served(path: str) -> str:
    """What else to say of a path that has no route; "" for nothing."""
    return next((why for form, why in _NOT_SERVED if form.fullmatch(path)), "")


_LONGEST_KEPT = 256


def match(path: str) -> Route | None:
    """The route of a path as it was sent, None when it has none. Callers choose paths: long ones
    are not kept."""
    return _kept(path) if len(path) <= _LONGEST_KEPT else _match(path)


@lru_cache(maxsize=1024)
def _kept(path: str) -> Route | None:
    return _match(path)


def _match(path: str) -> Route | None:
    fixed = _FIXED.get(path)
    if fixed is not None:
        return fixed
    if path.startswith("/v2/models/"):
        return _v2(path[len("/v2/models/") :].split("/"))
    if path.startswith("/v1/models/"):
        return _v1(path[len("/v1/models/") :])
    for kind in _REGIONS:
        if path.startswith(kind):
            return _region(path[len(kind) :].split("/"), _REGIONS[kind])
    return None


def _region(parts: list[str], kind: str) -> Route | None:
    name = unquote(parts[0])
    action = _REGION_ACTIONS.get(parts[1]) if len(parts) == 2 else None
    if not name or action is None:
        return None
    return Route(f"{kind}_{parts[1]}", action, region=name)


def _v2(parts: list[str]) -> Route | None:
    name, rest = unquote(parts[0]), parts[1:]
    version = None
    if len(rest) >= 2 and rest[0] == "versions":
        version, rest = unquote(rest[1]), rest[2:]
    action = _ACTIONS.get(rest[0] if rest else "") if len(rest) <= 1 else None
    if not name or "/" in name or action is None or version == "":
        return None
    return Route(action[0], action[1], name, version)


def _v1(rest: str) -> Route | None:
    name, colon, action = unquote(rest).partition(":")
    if not name or "//" in f"/{name}/" or ("/" in name and colon):
        return None  # what has parts is an alias, which bodies name; here it can be looked up alone
    if action in _V1_ACTIONS:
        return Route(action, ("POST",), name)
    if "/" in action or ":" in action or (colon and not action):
        return None
    return Route("openai_model", ("GET", "HEAD"), name, adapter=action)


_LARGEST_S = 1e11  # the year 5138; the same number of milliseconds is 1973
_LONGEST_HEADER = 32
_LONGEST_WAIT_S = 3600.0


def sent_at_s(value: bytes) -> float | None:
    """Seconds since the epoch, or None if the header says nothing sensible."""
    if len(value) > _LONGEST_HEADER:
        return None
    try:
        number = float(value.strip().removeprefix(b"t="))
    except ValueError:
        return None
    for scale in (1.0, 1e3, 1e6, 1e9):
        if 1e8 <= number / scale < _LARGEST_S:
            return number / scale
    return None


def upstream_wait_s(value: bytes | None, now_s: float) -> float | None:
    """Seconds between the proxy's stamp and `now_s` (wall clock); None when not known."""
    sent = sent_at_s(value) if value is not None else None
    if sent is None or not 0.0 <= now_s - sent <= _LONGEST_WAIT_S:
        return None
    return now_s - sent
