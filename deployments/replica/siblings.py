"""Replicas of a new version become ready together.

Serve ends a replica of the live version for each new one that is ready, and gateways go over to the
new version when it has as many: so with those that start at once ready at once, all of a model's
capacity works at any moment of a change. One that is ready waits for those that load; those that
have no place yet say nothing, and nobody waits for them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from deployments.contract.registry_actor import registry

LONGEST_WAIT_S = 60.0
_LOOKS_S, _ANSWER_S = 0.2, 2.0
logger = logging.getLogger("headrace.replica")


async def together(model: str, digest: str, longest_s: float) -> None:
    """Returns when no other replica with these settings loads, or no other version is live; after
    `longest_s`, or where the registry says nothing, in any case."""
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
