"""A replica's side of the data channel, listening."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from both_loops import event_loop_policy as event_loop_policy
from channel_stand import Stand
from generating_stand import Generating


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    stand = Stand()
    await stand.server.listen("127.0.0.1")
    yield stand
    await stand.close()


@pytest.fixture
async def gated() -> AsyncIterator[Stand]:
    """Its device waits until it is let."""
    stand = Stand(gated=True)
    await stand.server.listen("127.0.0.1")
    yield stand
    await stand.close()


@pytest.fixture
async def generating() -> AsyncIterator[Generating]:
    generating = Generating()
    await generating.server.listen("127.0.0.1")
    yield generating
    await generating.close()
