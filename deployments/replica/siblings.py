"""Makes the replicas of a new version become ready together.

Serve ends a replica of the live version for each new one that is ready, and gateways change to the
new version when it has as many. If replicas that start together become ready together, all of a
model's capacity works at every moment of a change. So a replica that is ready waits for those that
are loading. Nobody waits for replicas that have no node yet: they report nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from deployments.process.actors import registry

LONGEST_WAIT_S = 60.0
_LOOKS_S, _ANSWER_S = 0.2, 2.0  # between two questions; to wait for an answer
logger = logging.getLogger("headrace.replica")


async def together(model: str, digest: str, longest_s: float) -> None:
    """Return when no other replica with these settings is loading, or no other version is live.
    Returns anyway after `longest_s`, or if the registry does not answer."""
    end = time.monotonic() + longest_s
    try:
        actor: Any = registry()
        while time.monotonic() < end:
            async with asyncio.timeout(_ANSWER_S):
                loading = await actor.loading_beside.remote(model, digest)
            if not loading:
                return
            await asyncio.sleep(_LOOKS_S)
    except Exception as silence:
        logger.debug("the registry does not say who loads: %r", silence)
