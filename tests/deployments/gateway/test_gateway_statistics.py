"""What Triton's clients ask for: a model's configuration, and counts that are those of what ran."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from in_process import Stand, ask, standing

SYNTHETIC = {"runtime": "synthetic", "options": {"base_ms": 0}}


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    kept = {**SYNTHETIC, "cache": {"max_bytes": 1 << 20}}
    async with standing({"device": SYNTHETIC, "kept": kept}, tmp_path) as stand:
        stand.telemetry.refresh()
        yield stand


async def infer(stand: Stand, model: str, rows: int, value: int = 1) -> int:
    data = [[value, 2]] * rows
    tensor = {"name": "ids", "datatype": "INT64", "shape": [rows, 2], "data": data}
    body = json.dumps({"inputs": [tensor]}).encode()
    return (await ask(stand.app, "POST", f"/v2/models/{model}/infer", body=body)).status


async def page(stand: Stand, path: str) -> Any:
    answer = await ask(stand.app, "GET", path)
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


async def test_counts_are_those_of_requests_rows_and_batches(stand: Stand) -> None:
    (nothing,) = (await page(stand, "/v2/models/device/stats"))["model_stats"]
    assert (nothing["inference_count"], nothing["last_inference"]) == (0, 0)
    for rows in (1, 3, 3):
        assert await infer(stand, "device", rows) == 200
    assert (await ask(stand.app, "POST", "/v2/models/device/infer", body=b"{")).status == 400
    (found,) = (await page(stand, "/v2/models/device/stats"))["model_stats"]
    assert (found["name"], found["inference_count"], found["execution_count"]) == ("device", 7, 3)
    assert found["last_inference"] > 1_600_000_000_000
    times = found["inference_stats"]
    assert {name: each["count"] for name, each in times.items()} == {
        "success": 3, "fail": 1, "queue": 3, "compute_input": 3, "compute_infer": 3,
        "compute_output": 3, "cache_hit": 0, "cache_miss": 0,
    }  # fmt: skip
    assert times["success"]["ns"] >= times["queue"]["ns"] > 0
    sizes = {each["batch_size"]: each["compute_infer"]["count"] for each in found["batch_stats"]}
    assert sizes == {1: 1, 3: 2}
    # perf_analyzer reads the version as a number of 64 bits, and counts nothing otherwise.
    (told,) = (await page(stand, "/v2/models/device"))["versions"]
    version = found["version"]
    assert 0 < int(version) == int(told, 16) < 2**63
    assert await page(stand, f"/v2/models/device/versions/{version}/stats") == await page(
        stand, "/v2/models/device/stats"
    )
    assert (await ask(stand.app, "GET", "/v2/models/device/versions/none/stats")).status == 404
    names = [each["name"] for each in (await page(stand, "/v2/models/stats"))["model_stats"]]
    assert names == ["device", "kept"]


async def test_requests_of_one_batch_count_each_and_the_batch_once(stand: Stand) -> None:
    channel = stand.channels["device"]
    channel.hold()
    first = asyncio.create_task(infer(stand, "device", 1))
    await channel.sent(1)
    waiting = [asyncio.create_task(infer(stand, "device", 2, value)) for value in (3, 4)]
    await asyncio.sleep(0)
    channel.let_go()
    assert await asyncio.gather(first, *waiting) == [200] * 3
    (found,) = (await page(stand, "/v2/models/device/stats"))["model_stats"]
    assert (found["inference_count"], found["inference_stats"]["success"]["count"]) == (5, 3)
    assert found["execution_count"] == sum(
        each["compute_infer"]["count"] for each in found["batch_stats"]
    )


async def test_an_answer_that_was_kept_is_a_hit_and_no_inference(stand: Stand) -> None:
    for _ in range(2):
        assert await infer(stand, "kept", 1) == 200
    (found,) = (await page(stand, "/v2/models/kept/stats"))["model_stats"]
    times = found["inference_stats"]
    assert (found["inference_count"], times["success"]["count"]) == (1, 2)
    assert (times["cache_hit"]["count"], times["cache_miss"]["count"]) == (1, 1)


async def test_a_configuration_has_tensors_without_the_batch_axis(stand: Stand) -> None:
    config = await page(stand, "/v2/models/device/config")
    assert config["name"] == "device"
    assert config["max_batch_size"] == 32
    assert config["input"] == [{"name": "ids", "data_type": "TYPE_INT64", "dims": [-1]}]
    assert [each["name"] for each in config["output"]] == ["sum"]
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert (await ask(stand.app, "GET", "/v2/models/none/config")).status == 404
    extensions = (await page(stand, "/v2"))["extensions"]
    assert {"model_configuration", "statistics"} <= set(extensions)
