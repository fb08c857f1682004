"""The example with tenants is served as its comments say, in one process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from in_process import Answer, Stand, ask, standing

from deployments import cli
from deployments.settings.plain import dump
from deployments.settings_files.load import load

INFER = "/v2/models/device/infer"


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    example = dump(load(cli.built_in_example().with_name("tenants.yaml")))
    models, tenants = example["models"], example["tenants"]
    # Its lengths and tenants matter here, not the pretended device's time.
    models["device"]["options"] = {"base_ms": 0}
    async with standing(models, tmp_path, tenants=tenants, gateway=example["gateway"]) as stand:
        yield stand


async def infer(stand: Stand, length: int, **headers: str) -> Answer:
    row = {"name": "ids", "datatype": "INT64", "shape": [1, length], "data": [1] * length}
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return await ask(stand.app, "POST", INFER, given, json.dumps({"inputs": [row]}).encode())


async def counted(stand: Stand) -> dict[tuple[str, str], str]:
    """What arrived, by tenant and priority."""
    page = (await ask(stand.app, "GET", "/metrics")).body.decode()
    found = {}
    for line in page.splitlines():
        if line.startswith("headrace_arrivals_total{"):
            labels = dict(part.split("=") for part in line[24 : line.index("}")].split(","))
            found[labels["tenant"].strip('"'), labels["priority"].strip('"')] = line.split()[-1]
    return found


async def test_every_tenant_is_answered_at_its_priority(stand: Stand) -> None:
    for name in ("chat", "search", "nightly"):
        assert (await infer(stand, 100, x_tenant=name)).status == 200
    assert (await infer(stand, 100)).status == 200
    assert (await infer(stand, 100, x_tenant="chat", x_priority="standard")).status == 200
    assert (await infer(stand, 100, x_tenant="nightly", x_priority="interactive")).status == 200
    assert await counted(stand) == {
        ("chat", "interactive"): "1.0",
        ("chat", "standard"): "1.0",
        ("search", "standard"): "1.0",
        ("nightly", "bulk"): "2.0",
        ("default", "standard"): "1.0",
    }


async def test_each_is_held_to_what_is_its_own(stand: Stand) -> None:
    assert (await infer(stand, 129, x_tenant="chat")).status == 400
    assert (await infer(stand, 512, x_tenant="nightly")).status == 200
    assert (await infer(stand, 1, x_tenant="nobody")).status == 401
    # All at once: a busy machine that takes its time over them is owed more.
    answers = await asyncio.gather(*(infer(stand, 1) for _ in range(30)))
    statuses = [answer.status for answer in answers]
    assert statuses[:10] == [200] * 10
    assert statuses[-1] == 429
