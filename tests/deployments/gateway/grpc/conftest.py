"""A gateway behind HAProxy, and a channel to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_stand import KEY, GrpcStand, grpc_standing

from deployments.gateway.tenancy.tenants import hash_key

MODEL = {"runtime": "synthetic", "options": {"base_ms": 0}}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[GrpcStand]:
    async with grpc_standing({"device": MODEL}, tmp_path) as found:
        yield found


@pytest.fixture
async def closed(tmp_path: Path) -> AsyncIterator[GrpcStand]:
    """A server that needs keys."""
    tenants = {"one": {"keys": [hash_key(KEY)]}}
    async with grpc_standing({"device": MODEL}, tmp_path, tenants=tenants) as found:
        yield found


@pytest.fixture
async def channel(served: GrpcStand) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(served.target) as found:
        yield found
