"""May this prompt run, after prompts have ended replicas: at once, one at a time, or never?

Asked only while any such prompt is known. A suspect waits for a permit (`suspect_permits`). A
caller that leaves gives up its place. What has become known while a prompt waited counts when its
permit comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from time import monotonic

from deployments.contract import errors
from deployments.gateway.fallback import ModelSelection
from deployments.gateway.http.exchange import Exchange, run_until_disconnect
from deployments.gateway.queues.suspect_permits import Permit
from deployments.gateway.request_context import RequestContext, queue_request

_WAIT_SHARE = 0.5  # of a suspect's remaining time that it may wait for its permit


@asynccontextmanager
async def permit_of(
    context: RequestContext, selection: ModelSelection, key: bytes
) -> AsyncIterator[Permit | None]:
    """The permit of a prompt with this fingerprint; None: it is no suspect. A prompt is a suspect
    if a replica, also a canary's, was lost with it. Raises RowQuarantined, OverOwnLimit,
    CallerLeft."""
    permit = await _permit_if_suspect(context, selection, key)
    try:
        if permit is not None:
            _is_suspect(context, selection, key)  # it may have been quarantined while it waited
        yield permit
    finally:
        if permit is not None:
            permit.release()


async def _permit_if_suspect(
    context: RequestContext, selection: ModelSelection, key: bytes
) -> Permit | None:
    streams, caller = selection.model.streams, context.caller
    assert caller is not None
    tenant = caller.tenant.name
    if selection.lost_at_canary:
        streams.crashes.lost_elsewhere([key], tenant, monotonic())
    if not streams.crashes or not _is_suspect(context, selection, key):
        return None
    left_s = queue_request(context, selection.scheduling).expires_s
    limit_s = min(streams.crashes.terms.hold_s, _WAIT_SHARE * left_s)
    return await _acquired(context.exchange, streams.permits.acquire(tenant, limit_s))


def _is_suspect(context: RequestContext, selection: ModelSelection, key: bytes) -> bool:
    """Whether a replica was lost with this prompt. Raises RowQuarantined, OverOwnLimit."""
    assert context.caller is not None
    crashes = selection.model.streams.crashes
    return crashes.check([key], context.caller.tenant.name, monotonic())


async def _acquired(exchange: Exchange, acquire: Coroutine[None, None, Permit]) -> Permit:
    """Wait for the permit. Raises CallerLeft."""
    waits = asyncio.ensure_future(acquire)

    def left() -> None:
        waits.cancel()

    try:
        return await run_until_disconnect(exchange, waits, left)
    except asyncio.CancelledError:
        if waits.done() and not waits.cancelled():
            waits.result().release()  # the permit came after its caller had left
        own = asyncio.current_task()
        if own is not None and own.cancelling():
            raise
        raise errors.CallerLeft("the client disconnected") from None
