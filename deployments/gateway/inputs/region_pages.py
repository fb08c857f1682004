"""Triton's pages about shared memory: register a region, see what is registered, unregister.

A tenant sees and changes its own regions alone; each page counts as a request at its rate. There
are no regions of CUDA memory here: none is listed, unregistering finds none, and registering one
is refused.
Source: Triton, "Shared-Memory Extension", HTTP/REST.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from deployments.contract.errors import BadRequest
from deployments.gateway.http.body import small_body
from deployments.gateway.http.exchange import Exchange
from deployments.gateway.http.protocols import json_body
from deployments.gateway.http.protocols.tensors import Encoded
from deployments.gateway.http.protocols.triton import RegionRequest, RegisteredRegion
from deployments.gateway.http.request_head import Route
from deployments.gateway.inputs.external import NO_REGIONS, ExternalStage
from deployments.gateway.inputs.regions import RegionTable
from deployments.gateway.services import GatewayServices
from deployments.gateway.tenancy.tenants import KnownTenants

_LIMITS = small_body("a request about shared memory may be")
_request = msgspec.json.Decoder(RegionRequest)
_OFF_LOOP = 1 << 30  # bytes of work: always in the pool, because a lock may be waited for


class RegionPages:
    """Of the table that the stage has."""

    def __init__(
        self, services: GatewayServices, tenants: KnownTenants, stage: ExternalStage
    ) -> None:
        self._services, self._tenants, self._stage = services, tenants, stage

    def has(self, route: Route) -> bool:
        return route.endpoint.startswith(("region_", "cuda_"))

    async def answer(self, exchange: Exchange, route: Route) -> None:
        """Raises Unauthorized, Forbidden, BadRequest, NotFound, OverOwnLimit and Overloaded."""
        services = self._services
        caller = services.identify(exchange)
        services.rates.take_request(caller.tenant)
        if route.endpoint == "cuda_register":
            raise BadRequest("CUDA shared memory is not supported; register system shared memory")
        if route.endpoint.startswith("cuda_"):
            found: Any = [] if route.endpoint == "cuda_status" else None
        elif self._stage.regions is None:
            raise BadRequest(NO_REGIONS)
        else:
            action = await self._action(exchange, route, self._stage.regions, caller.tenant.name)
            found = await services.off_loop(caller, _OFF_LOOP, action)
        await exchange.reply(200, Encoded(msgspec.json.encode({} if found is None else found)))

    async def _action(
        self, exchange: Exchange, route: Route, regions: RegionTable, tenant: str
    ) -> Callable[[], Any]:
        if route.endpoint == "region_status":
            return lambda: regions.regions(tenant, route.region)
        if route.endpoint == "region_unregister":
            return lambda: regions.unregister(tenant, route.region)
        asked = json_body.read(_request, await exchange.body(_LIMITS))
        region = RegisteredRegion(route.region, asked.key, asked.offset, asked.byte_size)
        return lambda: regions.register(tenant, region, self._tenants.current.names)
