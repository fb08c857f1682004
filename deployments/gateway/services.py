"""What all requests of a gateway share: who is this, may anything start, run this off the loop.

It answers the questions of the pipeline that are not about one model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from deployments.contract import errors
from deployments.contract.description import ImageInput
from deployments.gateway.http.body import (
    MIN_BYTES_PER_S,
    SLOW_GRACE_S,
    ArrivingBodies,
    BodyBound,
    BodyLimits,
    BodyRoom,
    Inflation,
)
from deployments.gateway.http.exchange import Exchange
from deployments.gateway.models.catalogue import Catalogue
from deployments.gateway.preprocess.inputs import encode_texts, prepare_images
from deployments.gateway.request_context import RequestContext
from deployments.gateway.rollout.rollouts import GatewayRollouts
from deployments.gateway.suspected_requests import SuspectedRequests
from deployments.gateway.tenancy.fair_thread_pool import FairThreadPool
from deployments.gateway.tenancy.rates import QuotaKey, Rates, SharedBound
from deployments.gateway.tenancy.tenants import Caller, KnownTenants
from deployments.gateway.tracing import TraceContext
from deployments.preprocess.images import Encoded, row_bytes
from deployments.preprocess.tokenizer import TextTokenizer
from deployments.settings.gateway import GatewaySettings
from routers.api.requests import Tokens

T = TypeVar("T")
# Larger bodies are parsed by threads. What one read of a socket brings is parsed on the loop.
POOL_THRESHOLD_BYTES = 65_536


class RequestWatcher(Protocol):
    """Hears of every request: when its trace begins, its model is known, it moves to another model
    or version, it has ended, and its engine has stopped behind that."""

    def begin(self, headers: dict[bytes, bytes]) -> TraceContext: ...
    def arrived(self, context: RequestContext) -> None: ...
    def decided(self, context: RequestContext, event: str, decision: str, reason: str) -> None: ...
    def finished(self, context: RequestContext) -> None: ...
    def generated_late(self, context: RequestContext, more: Tokens) -> None: ...


class GatewayServices:
    """`watcher` is told exactly once that a request has finished, however it ended. Requests
    under way share their bound by tenant."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        tenants: KnownTenants,
        models: Catalogue,
        pool: FairThreadPool,
        watcher: RequestWatcher,
    ) -> None:
        limits = settings.limits
        self.models = models
        self.rollouts = GatewayRollouts(models, pool, len(settings.priorities))
        self.limits = BodyLimits(
            limits.max_body_bytes,
            limits.max_inflated_bytes,
            limits.body_timeout_s,
            BodyRoom(limits.max_held_bytes),
            arriving=ArrivingBodies(limits.max_arriving_bodies),
            min_bytes_per_s=MIN_BYTES_PER_S,
            grace_s=SLOW_GRACE_S,
        )
        self.rates = Rates(settings.replicas)
        self.suspected = SuspectedRequests()
        self.watcher = watcher
        self.pool = pool
        self._tenants = tenants
        self._threshold = POOL_THRESHOLD_BYTES
        self._under_way = SharedBound(limits.max_requests)

    def identify(self, exchange: Exchange) -> Caller:
        """Raises Unauthorized, or BadRequest for a priority nobody knows."""
        caller = self._tenants.current.identify(
            exchange.headers.get(b"authorization"),
            exchange.headers.get(b"x-tenant"),
            exchange.headers.get(b"x-priority"),
        )
        exchange.quota_key = caller.tenant.name, caller.tenant.weight
        return caller

    def check_key(self, caller: Caller) -> None:
        """Raises Unauthorized where the caller's key has ended since it came."""
        if not self._tenants.current.still_opens(caller.tenant):
            raise errors.Unauthorized("the API key has ended meanwhile", reason="key_ended")

    def begin(self, quota_key: QuotaKey) -> None:
        """One more request is under way, until `end`. Raises Overloaded."""
        if self.models.draining:
            raise errors.Overloaded(
                "the server is draining and takes no new requests",
                retry_after_s=errors.NOT_READY_S,
                reason="draining",
            )
        if not self._under_way.fits(quota_key, 1):
            raise errors.Overloaded(
                "the gateway has all the requests under way that it may have "
                "(gateway.limits.max_requests)",
                retry_after_s=errors.SOON_S,
                reason="gateway_full",
            )
        self._under_way.add(quota_key, 1)

    @property
    def under_way(self) -> int:
        return self._under_way.used

    def end(self, quota_key: QuotaKey) -> None:
        self._under_way.give(quota_key, 1)

    async def read_body(
        self, exchange: Exchange, caller: Caller, bound: Callable[[], BodyBound]
    ) -> bytes:
        """The whole body, as it was sent. `bound`: of what the model could take, asked of a body
        that may be large. Raises as `Exchange.body`, and UnsupportedMedia."""
        declared = exchange.number(b"content-length")
        encoding = exchange.encoding
        if encoding == b"identity" and declared is not None and declared <= self._threshold:
            return await exchange.body(self.limits)
        if encoding not in (b"gzip", b"identity"):
            raise errors.UnsupportedMedia("Content-Encoding must be gzip or identity")
        limits = self.limits.within(bound())
        exchange.check_length(limits)
        return await exchange.body(limits)

    async def inflated(
        self, exchange: Exchange, caller: Caller, body: bytes, bound: Callable[[], BodyBound]
    ) -> bytes:
        """Of a body that was sent compressed. Each step is a turn of the tenant's in the pool;
        memory is taken once its size is known."""
        size = bound()
        inflation = Inflation(body, self.limits.within(size), size)
        while not inflation.is_measured:
            await self.pool.run(caller.tenant.name, inflation.measure)
        exchange.hold(inflation.size_bytes, self.limits.room)
        return await self.pool.run(caller.tenant.name, inflation.take)

    async def off_loop(
        self, caller: Caller, size_bytes: int, function: Callable[..., T], *args: Any
    ) -> T:
        """`function(*args)`: here for a small input, else in the pool, in the tenant's turn."""
        if size_bytes <= self._threshold:
            return function(*args)
        return await self.pool.run(caller.tenant.name, function, *args)

    async def tokenize(
        self, caller: Caller, tokenizer: TextTokenizer, texts: list[str]
    ) -> list[Any]:
        return await encode_texts(self.pool, caller.tenant.name, tokenizer, texts)

    async def prepare_images(
        self, context: RequestContext, how: ImageInput, images: Sequence[Encoded]
    ) -> list[Any]:
        """As rows of the model's input, whose memory counts as the body's does."""
        assert context.caller is not None
        context.exchange.hold(len(images) * row_bytes(how), self.limits.room)
        return await prepare_images(self.pool, context.caller.tenant.name, how, images)
