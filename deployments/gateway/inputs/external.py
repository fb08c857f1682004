"""How do inputs get into a request that only names them, and outputs to where it wants them?

The stage works on calls, so it is the same for every protocol: regions are read and URLs fetched
before rows are split, outputs are written before the answer that says where they are. A request's
external inputs count in the gateway's memory as its body does, and may have as many bytes
together as a body may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from deployments.contract.description import Scheduling
from deployments.contract.errors import BadRequest, BodyTooLarge, CallerLeft, Expired
from deployments.gateway.http.body import BodyLimits
from deployments.gateway.http.exchange import run_until_disconnect
from deployments.gateway.http.protocols.openai_generation import GenerationCall, with_media
from deployments.gateway.http.protocols.tensors import (
    ExternalInput,
    Fetched,
    Region,
    RegionOutput,
    RowTensor,
)
from deployments.gateway.inputs.fetching import Fetcher, from_data_url
from deployments.gateway.inputs.regions import RegionTable
from deployments.gateway.services import GatewayServices, RequestContext, queue_request
from deployments.gateway.tenancy.tenants import Caller, KnownTenants
from deployments.settings.gateway import GatewaySettings

MAX_URLS = 64  # of one request, as many as tensors
_AT_ONCE = 8  # of those
_ROW_BYTES = 512  # what it takes to write a row, as bytes of a long one
_REGIONS = "headrace-regions"
NO_URLS = "inputs by URL are off (gateway.references)"
NO_REGIONS = "shared memory is off (gateway.shared_memory)"


class _Room:
    """What one request's URLs may hold together: as much as a body, or one input where that may be
    larger."""

    def __init__(
        self, context: RequestContext, limits: BodyLimits, fetcher: Fetcher | None
    ) -> None:
        self._exchange, self._limits = context.exchange, limits
        self._max_bytes = max(limits.max_bytes, fetcher.max_bytes if fetcher else 0)
        self._size = 0

    def hold(self, size: int) -> None:
        """Raises BodyTooLarge and Overloaded."""
        self._size += size
        if self._size > self._max_bytes:
            raise BodyTooLarge(
                f"what the request's URLs hold is larger together than {self._max_bytes} bytes "
                "(gateway.limits.max_body_bytes)"
            )
        self._exchange.hold(size, self._limits.room)


class ExternalStage:
    """`regions`: None where shared memory is off."""

    def __init__(
        self, services: GatewayServices, tenants: KnownTenants, settings: GatewaySettings
    ) -> None:
        self._services, self._tenants, self._settings = services, tenants, settings
        self.regions: RegionTable | None = None
        references = settings.references
        self._fetcher = None if references is None else Fetcher(references)

    def open_regions(self, folder: Path) -> None:
        memory = self._settings.shared_memory
        if memory is not None:
            self.regions = RegionTable(folder / _REGIONS, memory.prefix, memory.max_bytes)

    async def fill(self, context: RequestContext, scheduling: Scheduling, call: Any) -> Any:
        """Raises BadRequest, BodyTooLarge and Overloaded."""
        caller = context.caller
        assert caller is not None
        inputs = [each for each in call.external if isinstance(each, ExternalInput)]
        placed = [each for each in inputs if isinstance(each.at, Region)]
        outputs = [each for each in call.external if isinstance(each, RegionOutput)]
        if placed or outputs:
            await self._use_regions(context, caller, placed, outputs)
        named = [each for each in inputs if not isinstance(each.at, Region)]
        if named:
            budget_s = queue_request(context, scheduling).budget_s
            await self._in_time(context, budget_s, self._use_urls(context, caller, named))
        if isinstance(call, GenerationCall):
            media = sum(map(len, call.media.values()))
            context.exchange.hold(len(call.body) + media, self._services.limits.room)
            call = await self._services.off_loop(caller, len(call.body) + media, with_media, call)
        context.mark("external")
        return call

    async def write(
        self, context: RequestContext, outputs: Sequence[tuple[RegionOutput, RowTensor]]
    ) -> None:
        """Raises BadRequest."""
        if not outputs:
            return
        caller, regions = context.caller, self.regions
        assert caller is not None
        assert regions is not None  # or it was refused before it ran
        size = sum(tensor.packed_bytes for _, tensor in outputs)
        rows = sum(len(tensor.rows) for _, tensor in outputs)

        def write() -> None:
            for output, tensor in outputs:
                regions.write(output, tensor)

        await self._services.off_loop(caller, max(size, rows * _ROW_BYTES), write)

    async def _use_urls(
        self, context: RequestContext, caller: Caller, inputs: Sequence[ExternalInput]
    ) -> None:
        """Some at once; the first that fails ends the others."""
        if len(inputs) > MAX_URLS:
            raise BadRequest(f"the request has {len(inputs)} URLs; it may have {MAX_URLS}")
        room = _Room(context, self._services.limits, self._fetcher)
        waiting = iter(inputs)

        async def some() -> None:
            for each in waiting:
                await self._use_url(caller, each, room)

        tasks = [asyncio.ensure_future(some()) for _ in range(min(len(inputs), _AT_ONCE))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _use_url(self, caller: Caller, each: ExternalInput, room: _Room) -> None:
        url, tenant = str(each.at), caller.tenant.name
        off_loop = self._services.off_loop
        if url[:5].lower() == "data:":
            found = await off_loop(caller, len(url), from_data_url, each.label, url)
            room.hold(len(found.content))
        elif self._fetcher is None:
            raise BadRequest(f"{each.label}: {NO_URLS}; send the data in the body.")
        else:
            found = await self._fetcher.fetch(tenant, each.label, url, room.hold)
        await off_loop(caller, len(found.content), each.take, found)

    async def _in_time(
        self, context: RequestContext, budget_s: float, work: Coroutine[Any, Any, None]
    ) -> None:
        """Raises Expired and CallerLeft."""
        task = asyncio.ensure_future(work)

        def left() -> None:
            task.cancel()

        try:
            async with asyncio.timeout(max(budget_s, 0.0)):
                await run_until_disconnect(context.exchange, task, left)
        except TimeoutError:
            raise Expired("the request's time passed while its URLs were fetched") from None
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is not None and own.cancelling():
                raise
            raise CallerLeft("the client disconnected") from None
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _use_regions(
        self,
        context: RequestContext,
        caller: Caller,
        inputs: Sequence[ExternalInput],
        outputs: Sequence[RegionOutput],
    ) -> None:
        regions, tenant = self.regions, caller.tenant.name
        if regions is None:
            label = (inputs or outputs)[0].label
            raise BadRequest(f"{label}: {NO_REGIONS}; send the data in the body.")
        limits = self._services.limits
        size = sum(each.at.size for each in inputs if isinstance(each.at, Region))
        if size > limits.max_bytes:
            raise BodyTooLarge(
                f"the tensors in shared memory have {size} bytes, more than {limits.limit_name} "
                f"({limits.max_bytes})"
            )
        context.exchange.hold(size, limits.room)
        names = self._tenants.current.names

        def use() -> None:
            for output in outputs:
                regions.check_output(tenant, output, names)
            for each in inputs:
                assert isinstance(each.at, Region)
                each.take(Fetched(regions.read(tenant, each.label, each.at, names)))

        await self._services.off_loop(caller, size, use)
