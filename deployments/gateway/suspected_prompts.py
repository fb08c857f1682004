"""May this prompt run, now that prompts have ended replicas: at once, one at a time, or not at all?

Looked at only while anything is known of such prompts. A caller that leaves gives up its place;
what has come to light meanwhile counts when the permit comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from time import monotonic

from deployments.contract import errors
from deployments.gateway.http.exchange import Exchange, unless_left
from deployments.gateway.queues.suspect_permits import Permit
from deployments.gateway.request_context import RequestContext, demand_of
from deployments.gateway.reuse.fallback import ModelSelection

_SHARE = 0.5  # of its time that a suspected prompt may wait


@asynccontextmanager
async def permit_of(
    context: RequestContext, selection: ModelSelection, key: bytes
) -> AsyncIterator[Permit | None]:
    """The permit of a prompt of this fingerprint, that a replica was lost with, a canary's too;
    None: it is no suspect. Raises RowConvicted, OverOwnLimit."""
    permit = await _wanted(context, selection, key)
    try:
        if permit is not None:
            _is_suspect(context, selection, key)
        yield permit
    finally:
        if permit is not None:
            permit.release()


async def _wanted(context: RequestContext, selection: ModelSelection, key: bytes) -> Permit | None:
    streams, caller = selection.model.streams, context.caller
    assert caller is not None
    tenant = caller.tenant.name
    if selection.lost_at_canary:
        streams.crashes.lost_elsewhere([key], tenant, monotonic())
    if not streams.crashes or not _is_suspect(context, selection, key):
        return None
    left_s = demand_of(context, selection.promise).expires_s
    limit_s = min(streams.crashes.terms.hold_s, _SHARE * left_s)
    return await _acquired(context.exchange, streams.permits.acquire(tenant, limit_s))


def _is_suspect(context: RequestContext, selection: ModelSelection, key: bytes) -> bool:
    """Raises RowConvicted, OverOwnLimit."""
    assert context.caller is not None
    crashes = selection.model.streams.crashes
    return crashes.check([key], context.caller.tenant.name, monotonic())


async def _acquired(exchange: Exchange, acquire: Coroutine[None, None, Permit]) -> Permit:
    """Raises CallerLeft."""
    waits = asyncio.ensure_future(acquire)

    def left() -> None:
        waits.cancel()

    try:
        return await unless_left(exchange, waits, left)
    except asyncio.CancelledError:
        if waits.done() and not waits.cancelled():
            waits.result().release()  # it came when nobody was left to use it
        own = asyncio.current_task()
        if own is not None and own.cancelling():
            raise
        raise errors.CallerLeft("the client disconnected") from None
