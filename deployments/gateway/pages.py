"""The pages about the server and its models, and what an operator may ask of it.

Cheap and never queued. Where callers need keys, `PUBLIC` is all that is answered without one, and
it names no model. `OPERATORS` is answered to operators alone; everything else to whoever has a key,
and shows a tenant no model but its own. Where callers need none (`gateway.auth: open`), everything
but `/admin/...` is everybody's. What runs models asks for a tenant by itself.
An operator's key is no tenant's: `operators.keys` of the settings holds their hashes, and without
one the operator's pages are closed to everybody. The switch of the controllers is published for all
gateways and holds until the next deployment says otherwise; a revoked key stays revoked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec

from deployments.contract import errors
from deployments.contract.description import ModelDescription
from deployments.contract.registry import ANSWER_S
from deployments.gateway.http.body import small_body
from deployments.gateway.http.exchange import Exchange
from deployments.gateway.http.protocols import json_body, metadata, openapi, triton
from deployments.gateway.http.protocols.metadata import ModelState
from deployments.gateway.http.protocols.tensors import Encoded
from deployments.gateway.http.request_head import Route
from deployments.gateway.models.catalogue import Catalogue, unknown_model
from deployments.gateway.telemetry.gateway_telemetry import GatewayTelemetry
from deployments.gateway.tenancy.tenants import KnownTenants, PageReader, Tenants, key_header
from deployments.process import audit
from deployments.process.audit import AuditLine
from deployments.process.key_list import RevokedKey

PUBLIC = frozenset({"live", "ready"})
OPERATORS = frozenset({"metrics", "all_statistics", "model_statistics"})
ADMIN = frozenset({"admin_status", "admin_controllers", "admin_keys", "admin_revoke"})
NOBODY = PageReader(models=frozenset())
# Of an answer that another server than this process's own gives: Serve's proxy, which HAProxy asks
# while it knows no gateway. It stalls on large bodies and has no gRPC.
VIA_SERVE = (b"via", b"1.1 serve-proxy")
_INDEX_LIMITS = small_body("an index request may be")
# Swagger UI, from a package that brings its files: clusters reach no CDN. The path is relative, and
# the page's own address says where requests that are tried out go, for gateways behind a prefix.
# The validator that it would ask by default is a service elsewhere.
_DOCS = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Headrace</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="docs/favicon.png"><link rel="stylesheet" href="docs/swagger-ui.css">
</head><body><div id="docs">Reading <a href="openapi.json">openapi.json</a></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script>
const here = new URL(".", location.href).pathname.replace(/.$/, "") || "/"
fetch("openapi.json").then((answer) => answer.json()).then((spec) => SwaggerUIBundle(
  {spec: {...spec, servers: [{url: here}]}, dom_id: "#docs", validatorUrl: null}))
</script>
</body></html>
"""
_DOCS_PACKAGE = "fastapi_offline"
_HTML = b"text/html; charset=utf-8"
_MEDIA = {".css": b"text/css", ".js": b"text/javascript; charset=utf-8", ".png": b"image/png"}
_KEPT_A_DAY = [(b"cache-control", b"max-age=86400")]
_RETRY_AFTER = [(b"retry-after", b"%d" % errors.NOT_READY_S)]
Page = tuple[int, Encoded]


def reader_of(tenants: Tenants, exchange: Exchange, endpoint: str) -> PageReader:
    """Raises Unauthorized and Forbidden."""
    if endpoint in ADMIN:
        return tenants.operator(key_header(exchange.headers))
    if not tenants.need_keys:
        return PageReader()
    try:
        reader = tenants.reader(key_header(exchange.headers))
    except errors.Unauthorized:
        if endpoint in PUBLIC:
            return NOBODY
        raise
    if endpoint in OPERATORS and not reader.is_operator:
        raise errors.Forbidden("this page is for operators; send an operator's key")
    return reader


class Pages:
    """`priorities`: the gateway's, which the OpenAPI document lists."""

    def __init__(
        self,
        models: Catalogue,
        telemetry: GatewayTelemetry,
        tenants: KnownTenants,
        priorities: Sequence[str],
    ) -> None:
        self._tenants = tenants
        self._models = models
        self._telemetry = telemetry
        self._priorities = priorities
        self._pages: dict[str, Callable[[Exchange, Route, PageReader], Page]] = {
            "server_metadata": lambda *_: (200, metadata.server_metadata()),
            "model_metadata": self._model_metadata,
            "model_ready": self._model_ready,
            "model_config": self._model_config,
            "model_statistics": self._model_statistics,
            "all_statistics": self._all_statistics,
            "openai_models": self._openai_models,
            "openai_model": self._openai_model,
            "live": lambda *_: (200, metadata.live()),
            "ready": self._ready,
            "metrics": self._metrics,
            "openapi": self._openapi,
            "docs": lambda *_: (200, Encoded(_DOCS, _HTML)),
            "docs_file": _docs_file,
        }

    async def answer(self, exchange: Exchange, route: Route) -> None:
        """Raises Unauthorized and Forbidden, and NotFound for a model that nobody declared or that
        is not the reader's."""
        who = reader_of(self._tenants.current, exchange, route.endpoint)
        self._telemetry.used(who.key)
        if route.model is not None:
            name = self._models.name_of(route.model)
            if not who.may_see(name):
                raise self._models.missing(route.model)
            route = route._replace(model=name, alias=route.model if route.model != name else "")
        if route.endpoint == "repository_index":
            body = bytes(await exchange.body(_INDEX_LIMITS))
            only_ready = metadata.ready_only(body)
            status, page = 200, metadata.repository_index(self._states(who), only_ready=only_ready)
        else:
            status, page = self._pages[route.endpoint](exchange, route, who)
        await exchange.reply(status, page, _RETRY_AFTER if status == 503 else None)

    def _seen_by(self, who: PageReader) -> list[ModelDescription]:
        return [d for d in self._models.descriptions if who.may_see(d.name)]

    def _states(self, who: PageReader) -> list[ModelState]:
        waiting = {name for name in self._models.waiting_for if who.may_see(name)}
        ready = [
            ModelState(d.name, d.version, True) for d in self._seen_by(who) if d.name not in waiting
        ]
        return ready + [
            ModelState(name, "", False, self._why_not_ready(name)) for name in sorted(waiting)
        ]

    def _why_not_ready(self, name: str) -> str:
        optional = " (nothing waits for it: it is optional)"
        said = self._models.why_not_ready(name).removeprefix("is ")
        return said + optional * self._models.is_optional(name)

    def _ready(self, exchange: Exchange, route: Route, who: PageReader) -> Page:
        if self._models.draining:
            states = [ModelState("", "", False, "the server is draining and takes no new requests")]
            return 503, metadata.server_ready(False, states)
        ready = self._models.all_ready
        waiting = [s for s in self._states(who) if not s.ready]
        if ready:  # what came later answers for itself
            waiting = [s for s in waiting if self._models.is_optional(s.name)]
        page = metadata.server_ready(ready, waiting)
        if not exchange.is_direct:
            page.headers.append(VIA_SERVE)
        return (200 if ready else 503), page

    def _model_metadata(self, exchange: Exchange, route: Route, who: PageReader) -> Page:
        assert route.model is not None
        model = self._models.find(route.model, route.version)
        return 200, metadata.model_metadata(model.description)

    def _model_ready(self, exchange: Exchange, route: Route, who: PageReader) -> Page:
        assert route.model is not None
        try:
            self._models.find(route.model, route.version)
            ready = self._models.ready(route.model)
        except errors.NotReady:
            ready = False
        return (200 if ready else 503), metadata.model_ready(route.model, ready)

    def _model_config(self, exchange: Exchange, route: Route, who: PageReader) -> Page:
        assert route.model is not None
        return 200, triton.model_config(self._models.find(route.model, route.version).description)

    def _model_statistics(self, exchange: Exchange, route: Route, who: PageReader) -> Page:
        assert route.model is not None
        return self._statistics([self._models.find(route.model, route.version).description])

    def _all_statistics(self, exchange: Exchange, route: Route, who: PageReader) -> Page:
        return self._statistics(self._seen_by(who))

    def _statistics(self, of: Sequence[ModelDescription]) -> Page:
        counted = self._telemetry.statistics
        return 200, triton.statistics(counted.of(d.name, d.version).entry(d.name) for d in of)

    def _openai_models(self, exchange: Exchange, route: Route, who: PageReader) -> Page:
        return 200, metadata.openai_models(self._seen_by(who), self._models.aliases, who.may_use)

    def _openai_model(self, exchange: Exchange, route: Route, who: PageReader) -> Page:
        assert route.model is not None
        d, adapter = self._models.find(route.model).description, route.adapter
        known = d.generating is not None and adapter in d.generating.adapters
        if adapter and not (known and who.may_use(d.name, adapter)):
            raise unknown_model(f"{d.name}:{adapter}")
        return 200, metadata.openai_model(d, adapter, route.alias)

    def _metrics(self, exchange: Exchange, route: Route, who: PageReader) -> Page:
        body, content_type = self._telemetry.page(exchange.header(b"accept") or "")
        return 200, Encoded(body, content_type.encode())

    def _openapi(self, exchange: Exchange, route: Route, who: PageReader) -> Page:
        document = openapi.document(self._seen_by(who), exchange.base_url, self._priorities)
        return 200, Encoded(document)


def _docs_file(exchange: Exchange, route: Route, who: PageReader) -> Page:
    """One of the router's names."""
    name = PurePosixPath(exchange.path).name
    body = _docs_file_bytes(name)
    return 200, Encoded(body, _MEDIA[PurePosixPath(name).suffix], _KEPT_A_DAY)


@cache
def _docs_file_bytes(name: str) -> bytes:
    """Read once: the largest has 1.5 MB, and the event loop would wait for the disk."""
    return (_docs_folder() / name).read_bytes()


@cache
def _docs_folder() -> Path:
    package = find_spec(_DOCS_PACKAGE)  # found, not imported: its files are all we want
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "static"


_LIMITS = small_body("an operator's request may be")
T = TypeVar("T")
_STORE_S = 10.0
_STATUS_S = 2 * ANSWER_S  # it asks Serve and the autoscaler in turn


class _Switch(msgspec.Struct, forbid_unknown_fields=True):
    frozen: bool


class _Revoke(msgspec.Struct, forbid_unknown_fields=True):
    key: str


class OperatorPages:
    """`registry`: the actor's handle. `used` hears of each key that opened a page, by its id."""

    def __init__(self, registry: Any, tenants: KnownTenants, used: Callable[[str], None]) -> None:
        self._used = used
        self._registry = registry
        self._tenants = tenants
        self._pages: dict[str, Callable[[Exchange, str], Any]] = {
            "admin_status": self._status,
            "admin_controllers": self._controllers,
            "admin_keys": self._keys,
            "admin_revoke": self._revoke,
        }

    def has(self, route: Route) -> bool:
        return route.endpoint in self._pages

    async def answer(self, exchange: Exchange, route: Route) -> None:
        """Raises Unauthorized, Forbidden, BadRequest and NotReady."""
        reader = reader_of(self._tenants.current, exchange, route.endpoint)
        self._used(reader.key)
        found = await self._pages[route.endpoint](exchange, reader.key)
        await exchange.reply(200, Encoded(msgspec.json.encode(found)))

    async def _status(self, exchange: Exchange, key: str) -> dict[str, Any]:
        try:
            asked = self._registry.server_status.remote()
            found: dict[str, Any] = await asyncio.wait_for(asked, _STATUS_S)
        except Exception as fault:
            # Whatever keeps Ray from answering; the gateway itself goes on.
            raise errors.NotReady(
                f"the registry does not answer: {fault!r}", retry_after_s=errors.SOON_S
            ) from None
        return found

    async def _controllers(self, exchange: Exchange, key: str) -> dict[str, Any]:
        switch = await _read(exchange, _Switch, '{"frozen": true} or false')
        asked = f"controllers: {'frozen' if switch.frozen else 'free'}"
        with audit.audited(_line(exchange, key, "freeze", asked)):
            await _stored(self._tenants.publish_frozen, switch.frozen)
        return {"frozen": switch.frozen}

    async def _keys(self, exchange: Exchange, key: str) -> dict[str, Any]:
        return {"keys": self._tenants.key_rows()}

    async def _revoke(self, exchange: Exchange, key: str) -> dict[str, Any]:
        asked = await _read(exchange, _Revoke, '{"key": "its id or hash"}')
        line = _line(exchange, key, "revoke", f"key {audit.nameable(asked.key)}")
        with audit.audited(line):
            found: RevokedKey = await _stored(self._tenants.revoke, asked.key)
        return dict(found)


def _line(exchange: Exchange, key: str, verb: str, what: str) -> AuditLine:
    return AuditLine(f"key {key}", verb, what, f"gateway, {exchange.caller_address}")


async def _read(exchange: Exchange, kind: type[T], must: str) -> T:
    """Raises BadRequest."""
    body = bytes(await exchange.body(_LIMITS))
    try:
        return msgspec.json.decode(body, type=kind)
    except json_body.DECODE_ERRORS as wrong:
        fault = json_body.fault(wrong, body)
        raise errors.BadRequest(f"{fault.message} The body must be {must}.") from None


async def _stored(change: Callable[[Any], T], what: Any) -> T:
    """Done off the loop. Raises BadRequest, and NotReady while the cluster's store does not
    answer."""
    try:
        async with asyncio.timeout(_STORE_S):
            return await asyncio.to_thread(change, what)
    except ValueError as wrong:
        raise errors.BadRequest(str(wrong)) from None
    except Exception as fault:
        # Whatever keeps the store from answering.
        raise errors.NotReady(
            f"the cluster's store does not answer: {fault!r}; it may still come about",
            retry_after_s=errors.SOON_S,
        ) from None
