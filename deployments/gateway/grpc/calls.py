"""Where does a gRPC call go? To the pipeline, a page, the health service or reflection.

`ModelInfer` is one request of the pipeline, each message of `ModelStreamInfer` another. Methods
that are not here (loading models, CUDA regions, trace and log settings) are answered UNIMPLEMENTED.
The health service's name "" is the whole server, that of a service is the server too, any other is
a model.
Source: Open Inference Protocol; grpc/grpc, doc/health-checking.md, doc/server-reflection.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from google.protobuf.message import DecodeError

from deployments.contract import errors
from deployments.gateway.grpc import frames, messages
from deployments.gateway.grpc.exchange import GrpcExchange
from deployments.gateway.grpc.infer_codec import GrpcInferCodec
from deployments.gateway.grpc.inner_call import InnerCall
from deployments.gateway.grpc.pages import PAGES, PageMethod
from deployments.gateway.grpc.stream import InferStream, MessageStream
from deployments.gateway.http.body import small_body
from deployments.gateway.http.exchange import Exchange
from deployments.gateway.http.fast_path import Receive, Scope, Send
from deployments.gateway.http.protocols.tensors import Encoded
from deployments.gateway.http.request_head import Route
from deployments.gateway.pipeline import Pipeline
from deployments.gateway.services import GatewayServices
from deployments.settings.gateway import GrpcSettings

PREFIXES = tuple(f"/{name}/".encode() for name in messages.SERVICES)
PUBLIC = ("", *messages.SERVICES)  # whose health is the whole server's, and needs no key
_SMALL = small_body("a message of this method may be")
_MAX_REFLECTIONS = 1000  # of one stream: more than the services have symbols
_LOOK_S = 1.0
_HealthRequest = messages.message("grpc.health.v1.HealthCheckRequest")
_HealthResponse = messages.message("grpc.health.v1.HealthCheckResponse")
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3
Answer = Callable[[Exchange, Route], Awaitable[None]]


class GrpcCalls:
    """`page`: answers what an HTTP path leads to, but for models' answers."""

    def __init__(
        self, settings: GrpcSettings, services: GatewayServices, pipeline: Pipeline, page: Answer
    ) -> None:
        self._max_message_bytes = settings.max_message_bytes
        self._services = services
        self._pipeline = pipeline
        self._page = page
        self._codec = GrpcInferCodec(self._generates)

    def exchange(self, scope: Scope, receive: Receive, send: Send, watch: Any) -> GrpcExchange:
        return GrpcExchange(scope, receive, send, watch, self._max_message_bytes)

    async def answer(self, call: GrpcExchange) -> None:
        """Raises HeadraceError before anything was sent."""
        _, service, method = call.path.split("/", 2)
        if call.method != "POST":
            raise errors.MethodNotAllowed("gRPC calls are POST requests")
        if not call.headers.get(b"content-type", b"").startswith(frames.CONTENT_TYPE):
            raise errors.UnsupportedMedia("the content-type must be application/grpc")
        if service == messages.INFERENCE:
            await self._infer_service(call, method)
        elif service == messages.HEALTH and method == "Check":
            request = await _read(call, _HealthRequest)
            await _reply(call, _HealthResponse(status=await self._health(call, request.service)))
        elif service == messages.HEALTH and method == "Watch":
            await self._watch(call)
        elif service in messages.REFLECTION and method == "ServerReflectionInfo":
            await self._reflection(call)
        else:
            raise _unknown(call.path)

    async def _infer_service(self, call: GrpcExchange, method: str) -> None:
        if method == "ModelInfer":
            await self._pipeline.answer(call, self._codec, None)
        elif method == "ModelStreamInfer":
            await InferStream(call, self._services, self._pipeline, self._codec).run()
        elif (page := PAGES.get(method)) is not None:
            await self._answer_by_page(call, page)
        else:
            raise _unknown(call.path)

    async def _answer_by_page(self, call: GrpcExchange, method: PageMethod) -> None:
        request = await _read(call, method.request)
        inner = await self._asked(call, method.verb, method.route(request), method.body(request))
        await call.reply(200, Encoded(method.message(inner.status, inner.answer)))

    async def _asked(
        self, call: GrpcExchange, verb: str, route: Route, body: bytes = b""
    ) -> InnerCall:
        inner = InnerCall(call, verb, body)
        await self._page(inner, route)
        return inner

    async def _health(self, call: GrpcExchange, service: str) -> int:
        """Raises NotFound for a model that the caller does not know, and Unauthorized."""
        if service in PUBLIC:
            inner = await self._asked(call, "GET", Route("ready", ()))
        else:
            model = PAGES["ModelReady"]
            inner = await self._asked(call, "GET", model.route(model.request(name=service)))
        return _SERVING if inner.status == 200 else _NOT_SERVING

    async def _watch(self, call: GrpcExchange) -> None:
        """Sends the status, and each change of it, until the client leaves or the server ends."""
        request = await _read(call, _HealthRequest)
        stream = MessageStream(call, self._services, is_public=request.service in PUBLIC)
        async with stream:
            said = None
            while not stream.ended:
                try:
                    status = await self._health(call, request.service)
                except errors.NotFound:
                    status = _SERVICE_UNKNOWN
                if status != said:
                    said = status
                    await stream.send(_HealthResponse(status=status).SerializeToString())
                await stream.wait_ended(_LOOK_S)
            stream.is_cut = True

    async def _reflection(self, call: GrpcExchange) -> None:
        servicer = await asyncio.to_thread(_reflection_servicer)
        stream = MessageStream(call, self._services)
        async with stream:
            answered = 0
            async for compressed, message in stream.messages(_SMALL):
                answered += 1
                if compressed:
                    message = _inflated(call, message)
                if answered > _MAX_REFLECTIONS:
                    raise errors.BadRequest(
                        f"a stream of reflection may have {_MAX_REFLECTIONS} requests"
                    )
                await stream.send(servicer(message))

    def _generates(self, name: str) -> str | None:
        models = self._services.models
        served = models.queued.get(models.name_of(name.partition(":")[0]))
        if served is None or served.description.generating is None:
            return None
        return served.description.version


async def _read(call: GrpcExchange, kind: Any) -> Any:
    body = await call.body(_SMALL)
    if call.encoding != b"identity":
        body = _inflated(call, body)
    try:
        return kind.FromString(body)
    except DecodeError:
        raise errors.BadRequest(f"the message is no {kind.DESCRIPTOR.full_name}") from None


def _inflated(call: GrpcExchange, message: bytes | memoryview) -> bytes:
    return frames.inflated(message, call.headers[b"grpc-encoding"], _SMALL)


async def _reply(call: GrpcExchange, message: Any) -> None:
    await call.reply(200, Encoded(message.SerializeToString()))


def _unknown(path: str) -> errors.HeadraceError:
    return errors.MethodNotAllowed(f"there is no method {path}")


@cache
def _reflection_servicer() -> Callable[[bytes], bytes]:
    """One request of reflection to its answer. Imported when the first one comes: it takes grpc,
    which nothing else here needs."""
    from grpc_reflection.v1alpha import reflection, reflection_pb2

    servicer = reflection.ReflectionServicer(messages.SERVICES, messages.POOL)

    def answer(message: bytes) -> bytes:
        try:
            request = reflection_pb2.ServerReflectionRequest.FromString(message)
        except DecodeError:
            raise errors.BadRequest("the message is no ServerReflectionRequest") from None
        (response,) = servicer.ServerReflectionInfo([request], None)
        serialised: bytes = response.SerializeToString()
        return serialised

    return answer
