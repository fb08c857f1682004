"""What tests of queues and of the data channel below them share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from followed_registry import Following


@pytest.fixture
def said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """The log."""
    monkeypatch.setattr(logging.getLogger("headrace"), "propagate", True)
    return caplog


@pytest.fixture
async def following(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Following]:
    monkeypatch.setattr("deployments.process.replica_directory._DIRECTORIES", {})
    monkeypatch.setattr("deployments.gateway.models.catalogue._PAUSE_S", 0.0)
    found = Following()
    task = asyncio.create_task(found.catalogue.follow())
    yield found
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
