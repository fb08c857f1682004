"""Where does an HTTP request go? The gateway as a raw ASGI app: to the pipeline, or to a page.

The app also answers `lifespan`, HEAD, unknown paths and attempts at WebSockets. Every error has the
shape of the protocol that its path belongs to. The app knows no queue, and keeps no metric of its
own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

from deployments.contract import errors
from deployments.gateway.generation import generate
from deployments.gateway.grpc.calls import PREFIXES as GRPC_PREFIXES
from deployments.gateway.grpc.calls import GrpcCalls
from deployments.gateway.http import request_head
from deployments.gateway.http.arrow_codecs import ArrowEmbeddingsCodec, ArrowInferCodec
from deployments.gateway.http.codecs import (
    ClassifyCodec,
    Codec,
    EmbeddingsCodec,
    GenerationCodec,
    InferCodec,
    PairsCodec,
    PredictCodec,
    SparseCodec,
)
from deployments.gateway.http.cors import METHOD, NO_CORS, cross_origin, is_preflight
from deployments.gateway.http.exchange import DisconnectWatch, Exchange
from deployments.gateway.http.fast_path import Receive, Scope, Send
from deployments.gateway.http.protocols import (
    anthropic_messages,
    error_shapes,
    openai_generation,
    openai_responses,
    rerank,
    tokenizing,
)
from deployments.gateway.http.protocols.tensors import Encoded
from deployments.gateway.http.request_head import HeadChecks, Route
from deployments.gateway.inputs.external import ExternalStage
from deployments.gateway.inputs.region_pages import RegionPages
from deployments.gateway.models.catalogue import Catalogue
from deployments.gateway.pages import OperatorPages, Pages
from deployments.gateway.pipeline import Pipeline
from deployments.gateway.rollout.rollouts import GatewayRollouts
from deployments.gateway.services import GatewayServices
from deployments.gateway.telemetry.gateway_telemetry import GatewayTelemetry
from deployments.gateway.tenancy.fair_thread_pool import FairThreadPool
from deployments.gateway.tenancy.tenants import KnownTenants
from deployments.settings.gateway import GatewaySettings, GrpcSettings

_CODECS: dict[str, Codec | GenerationCodec] = {
    "infer": InferCodec(),
    "predict": PredictCodec(),
    "classify": ClassifyCodec(),
    "embeddings": EmbeddingsCodec("openai", "embedding"),
    "pooling": EmbeddingsCodec("pooling", "pooling"),
    "embed_sparse": SparseCodec(),
    "classify_texts": EmbeddingsCodec("classify", "classification"),
    "rerank": PairsCodec(
        "rerank", partial(rerank.decode, returns=True)
    ),  # as Jina's clients expect
    "rerank_v2": PairsCodec("rerank", partial(rerank.decode, returns=False)),  # and as Cohere's do
    "score": PairsCodec("score", rerank.decode_score),
    "completions": GenerationCodec("completions", openai_generation.decode_completion),
    "chat": GenerationCodec("chat", openai_generation.decode_chat),
    "messages": GenerationCodec("messages", anthropic_messages.decode),
    "count_tokens": GenerationCodec("count_tokens", anthropic_messages.decode_count),
    "responses": GenerationCodec("responses", openai_responses.decode),
    "tokenize": GenerationCodec("tokenize", tokenizing.decode),
    "detokenize": GenerationCodec("detokenize", tokenizing.decode_tokens),
}
_ARROW_CODECS: dict[str, Codec] = {
    "infer": ArrowInferCodec(),
    "embeddings": ArrowEmbeddingsCodec("openai", "embedding"),
}
_PREFLIGHT = Encoded(b"", b"text/plain")  # 204 has no length, which every answer here has
logger = logging.getLogger("headrace.gateway")


class GatewayApp:
    """The ASGI app of one gateway."""

    def __init__(
        self,
        services: GatewayServices,
        rollouts: GatewayRollouts,
        pages: Pages,
        others: Sequence[OperatorPages | RegionPages],
        # Is told every request's client address, for keep-alive counters, and every refusal that
        # the pipeline did not see.
        telemetry: GatewayTelemetry,
        heads: HeadChecks,  # which headers are accepted
    ) -> None:
        # For whoever tells other gateways of them.
        self.rates = services.rates
        self.rollouts = rollouts
        self.suspected = services.suspected
        self.external = services.external
        self._services = services
        self._pipeline = Pipeline(services, rollouts, generate)
        self._pages = pages
        self._others = others
        self._connection = telemetry.connection
        self._turned_away = telemetry.turned_away
        self._heads = heads
        self._cors = heads.cors
        self._disconnects = DisconnectWatch()
        self._grpc: GrpcCalls | None = None

    def serve_grpc(self, settings: GrpcSettings) -> None:
        """Answers gRPC calls, too, from now on."""
        self._grpc = GrpcCalls(settings, self._services, self._pipeline, self._page)

    @property
    def under_way(self) -> int:
        """Requests for a model's answer that have begun and not ended."""
        return self._services.under_way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] == "websocket":
            await _refuse_websocket(scope, receive, send)
            return
        grpc, call = self._grpc, None
        if (
            grpc is not None
            and scope["raw_path"].startswith(GRPC_PREFIXES)
            and scope.get("http_version") != "1.0"  # which has no trailers
        ):
            call = grpc.exchange(scope, receive, send, self._disconnects)
        exchange = call or Exchange(scope, receive, send, self._disconnects)
        self._connection(exchange.client)
        try:
            if self._cors is not None:
                origin = exchange.headers.get(b"origin")
                exchange.cors = self._cors.said(origin, exchange.path)
                if is_preflight(exchange.method, exchange.headers):
                    asked = self._cors.preflight(exchange.headers, exchange.path)
                    await exchange.reply(200, _PREFLIGHT, asked)
                    return
            self._heads.check(exchange, scope["headers"])
            await (self._route(exchange) if grpc is None or call is None else grpc.answer(call))
        except errors.CallerLeft:
            pass  # nobody reads an answer
        except errors.HeadraceError as error:
            self._turned_away(exchange, error)
            await exchange.refuse(error, error_shapes.of_path(exchange.path))
        except Exception:
            request_id = exchange.request_id.decode("latin-1")
            logger.exception("unexpected", extra={"request_id": request_id})
            if not exchange.replied:
                fault = errors.HeadraceError(
                    "an unexpected error; the server's log has its details under this request id"
                )
                await exchange.refuse(fault, error_shapes.of_path(exchange.path))
        finally:
            exchange.release()

    def _route(self, exchange: Exchange) -> Awaitable[None]:
        """Raises NotFound."""
        route = request_head.match(exchange.path)
        if route is None:
            at, why = exchange.prefix, request_head.not_served(exchange.path)
            why = why or f"GET {at}/docs lists the API"
            raise errors.NotFound(f"no such path: {at}{exchange.path}; {why}")
        if exchange.method not in route.methods:
            return _refuse_method(exchange, route.methods)
        codec = _CODECS.get(route.endpoint)
        if codec is None:
            return self._page(exchange, route)
        if exchange.concerns_arrow:
            codec = _ARROW_CODECS.get(route.endpoint, codec)
        return self._pipeline.answer(exchange, codec, route.model, route.version)

    async def _page(self, exchange: Exchange, route: Route) -> None:
        pages = next((each for each in self._others if each.has(route)), self._pages)
        await pages.answer(exchange, route)


async def _refuse_method(exchange: Exchange, methods: tuple[str, ...]) -> None:
    said = f"{exchange.path} accepts {' or '.join(methods)} only"
    if METHOD in exchange.headers:  # a browser's preflight
        said = NO_CORS
    error = errors.MethodNotAllowed(said)
    allow = (b"allow", ", ".join(methods).encode())
    await exchange.refuse(error, error_shapes.of_path(exchange.path), [allow])


async def _refuse_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 400 where the ASGI server supports an answer to the handshake; else close, which the
    server turns into a 403."""
    await receive()
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close"})
        return
    error = errors.BadRequest(
        "WebSockets are not supported; send the request without the Upgrade header"
    )
    answer = error_shapes.of_path(scope["raw_path"].decode("latin-1"))(error)
    head = [
        (b"content-type", answer.content_type),
        (b"content-length", b"%d" % len(answer.body)),
        (b"connection", b"close"),
    ]
    start = {"type": "websocket.http.response.start", "status": error.status, "headers": head}
    await send(start)
    await send({"type": "websocket.http.response.body", "body": answer.body})


def assembled(
    settings: GatewaySettings,
    tenants: KnownTenants,
    models: Catalogue,
    pool: FairThreadPool,
    telemetry: GatewayTelemetry,
    registry: Any = None,
) -> GatewayApp:
    """The app over parts that the caller made; the caller also closes them."""
    services = GatewayServices(
        settings, tenants=tenants, models=models, pool=pool, watcher=telemetry
    )
    services.external = external = ExternalStage(services, tenants, settings)
    pages = Pages(models, telemetry, tenants, settings.priorities)
    operator = OperatorPages(registry, tenants, telemetry.used)
    cors = cross_origin(settings.cors)
    heads = HeadChecks(settings.allowed_hosts, lambda: not tenants.current.need_keys, cors)
    rollouts = GatewayRollouts(models, pool, len(settings.priorities))
    others = operator, RegionPages(services, tenants, external)
    app = GatewayApp(services, rollouts, pages, others, telemetry, heads)
    if settings.grpc is not None:
        app.serve_grpc(settings.grpc)
    return app


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
