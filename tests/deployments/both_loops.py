"""Tests of sockets run on asyncio's own event loop and on uvloop's: what a conftest imports."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop


@pytest.fixture(
    scope="module", params=[asyncio.DefaultEventLoopPolicy(), uvloop.EventLoopPolicy()],
    ids=["asyncio", "uvloop"],
)  # fmt: skip
def event_loop_policy(request: pytest.FixtureRequest) -> Any:
    return request.param
