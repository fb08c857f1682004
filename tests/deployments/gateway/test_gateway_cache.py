"""Rows that were answered before are answered again without a run, for those who may have them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runtimes import Encoder, Moody
from held_calls import INFER, body_of, data
from in_process import Answer, Stand, ask, standing

from deployments.contract.description import ReuseSettings
from deployments.gateway.rows import row_keys
from runtimes.errors import BadRows

CACHED = {
    "runtime": "synthetic",
    "options": {"base_ms": 0},
    "slo": {"latency_ms": 2000},
    "cache": {"max_bytes": 1_000_000},
}
TENANTS = {"a": {}, "b": {}}


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing({"device": CACHED}, tmp_path, tenants=TENANTS) as stand:
        yield stand


async def post(stand: Stand, *values: int, tenant: bytes = b"a", **headers: bytes) -> Answer:
    head = [(b"x-tenant", tenant)]
    head += [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    return await ask(stand.app, "POST", INFER, head, body_of(list(values)))


def cached(answer: Answer) -> bytes | None:
    assert answer.status == 200, answer.body
    return answer.header(b"x-cache")


def rows_run(stand: Stand) -> int:
    calls = stand.channels["device"].calls
    return sum(len(np.frombuffer(call.lengths, np.int32)) for _, call in calls)


async def test_an_equal_request_is_answered_without_a_run(stand: Stand) -> None:
    first, second = await post(stand, 1, 2), await post(stand, 1, 2)
    assert (cached(first), cached(second)) == (b"miss", b"hit")
    assert first.body == second.body
    assert rows_run(stand) == 2


async def test_a_cached_answer_says_that_it_took_no_time_of_the_device(stand: Stand) -> None:
    await post(stand, 1)
    answer = await post(stand, 1)
    assert answer.header(b"x-service-time-ms") == b"0.000"
    assert answer.header(b"x-queue-wait-ms") == b"0.000"
    assert answer.header(b"x-batch-size") is None


async def test_rows_known_and_unknown_make_one_answer_in_order(stand: Stand) -> None:
    await post(stand, 1, 2)
    answer = await post(stand, 5, 2, 6, 1)
    assert cached(answer) == b"partial"
    assert data(answer) == [5, 2, 6, 1]
    assert rows_run(stand) == 2 + 2


async def test_a_model_without_a_cache_looks_at_none(tmp_path: Path) -> None:
    plain = {**CACHED, "cache": {}}
    async with standing({"device": plain}, tmp_path, tenants=TENANTS) as stand:
        answers = [await post(stand, 1) for _ in range(2)]
        assert [cached(answer) for answer in answers] == [None, None]
        assert rows_run(stand) == 2


async def test_tenants_share_what_is_declared_public(tmp_path: Path) -> None:
    public = {**CACHED, "cache": {"max_bytes": 1_000_000, "public": True}}
    async with standing({"device": public}, tmp_path, tenants=TENANTS) as stand:
        await post(stand, 1, tenant=b"a")
        assert cached(await post(stand, 1, tenant=b"b")) == b"hit"


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ({"cache_control": b"no-store"}, {}, b"miss"),
        ({"cache_control": b"no-cache"}, {}, b"hit"),
        ({}, {"cache_control": b"no-cache"}, None),
        ({}, {"cache_control": b"max-age=0, No-Store"}, None),
        ({"x_idempotent": b"false"}, {}, b"miss"),
        ({}, {"x_idempotent": b"false"}, None),
    ],
)
async def test_headers_keep_a_request_from_the_cache(
    stand: Stand, first: dict[str, bytes], second: dict[str, bytes], found: bytes | None
) -> None:
    await post(stand, 1, **first)
    assert cached(await post(stand, 1, **second)) == found


async def test_every_protocol_finds_the_same_answers(tmp_path: Path) -> None:
    model = {**CACHED, "task": "embed"}
    async with standing({"e": model}, tmp_path, runtimes={"e": Encoder()}) as stand:
        ids = {"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [3, 4]}
        ask_for = {"inputs": [ids], "outputs": [{"name": "sums"}]}
        calls = [
            ("/v2/models/e/infer", json.dumps(ask_for).encode(), ()),
            ("/v1/embeddings", b'{"model": "e", "input": [[3, 4]]}', ()),
            _binary("/v2/models/e/infer", np.array([[3, 4]]), "sums"),
        ]
        found = []
        for path, body, headers in calls:
            found.append(cached(await ask(stand.app, "POST", path, headers, body)))
        assert found == [b"miss", b"hit", b"hit"]


def _binary(path: str, ids: Any, output: str) -> tuple[str, bytes, list[tuple[bytes, bytes]]]:
    content = ids.astype(np.int64).tobytes()
    tensor = {"name": "ids", "datatype": "INT64", "shape": list(ids.shape)}
    tensor["parameters"] = {"binary_data_size": len(content)}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": output}]}).encode()
    return path, head + content, [(b"inference-header-content-length", b"%d" % len(head))]


async def test_outputs_that_others_in_the_batch_wanted_are_not_needed(tmp_path: Path) -> None:
    async with standing({"device": CACHED}, tmp_path, runtimes={"device": Encoder()}) as stand:
        channel = stand.channels["device"]

        def wants(names: list[str], *rows: int) -> Any:
            call = json.loads(body_of(list(rows)))
            call["outputs"] = [{"name": name} for name in names]
            return ask(stand.app, "POST", INFER, (), json.dumps(call).encode())

        await wants(["sums"], 1)
        channel.hold()
        held = []
        for n in range(2):
            held.append(asyncio.create_task(wants(["tokens"], 100 + n)))
            await channel.sent(2 + n)
        both = asyncio.create_task(wants(["tokens", "sums"], 7))
        mixed = asyncio.create_task(wants(["sums"], 2, 1))
        await stand.waiting("device", 2)
        channel.let_go()
        answer = await mixed
        assert cached(answer) == b"partial"
        assert [each["name"] for each in json.loads(answer.body)["outputs"]] == ["sums"]
        await asyncio.gather(both, *held)


async def test_an_error_is_not_kept(tmp_path: Path) -> None:
    moods: list[Exception | None] = [BadRows("not today"), None]
    moody = Moody(lambda value: moods.pop(0))
    async with standing({"device": CACHED}, tmp_path, runtimes={"device": moody}) as stand:
        body = body_of([1], name="x")
        first = await ask(stand.app, "POST", INFER, (), body)
        second = await ask(stand.app, "POST", INFER, (), body)
        assert first.status == 400
        assert cached(second) == b"miss"


async def test_no_answer_outlives_its_version(stand: Stand) -> None:
    await post(stand, 1)
    stand.swap("device", version="2")
    answer = await post(stand, 1)
    assert cached(answer) == b"miss"
    assert json.loads(answer.body)["model_version"] == "2"
    assert cached(await post(stand, 1)) == b"hit"


async def test_a_generation_under_the_same_version_starts_with_nothing(stand: Stand) -> None:
    await post(stand, 1)
    stand.swap("device", generation=5)
    assert cached(await post(stand, 1)) == b"miss"


async def test_the_same_model_announced_again_keeps_its_answers(stand: Stand) -> None:
    await post(stand, 1)
    stand.swap("device", profile=((1, 16, 0.001),))
    assert cached(await post(stand, 1)) == b"hit"


async def test_what_was_under_way_when_the_version_changed_is_not_kept(stand: Stand) -> None:
    channel = stand.channels["device"]
    channel.hold()
    call = asyncio.create_task(post(stand, 1))
    await channel.sent(1)
    stand.swap("device", version="2")
    channel.let_go()
    await call
    assert cached(await post(stand, 1)) == b"miss"


async def test_a_request_that_meets_two_versions_is_asked_to_come_again(stand: Stand) -> None:
    await post(stand, 1)
    for value in (2, 3):
        await post(stand, value)
    channel = stand.channels["device"]
    channel.hold()
    held = []
    for n in range(2):
        held.append(asyncio.create_task(post(stand, 100 + n)))
        await channel.sent(4 + n)
    mixed = asyncio.create_task(post(stand, 1, 9))
    await stand.waiting("device", 1)
    stand.swap("device", version="2")
    channel.let_go()
    assert (await mixed).status == 503
    await asyncio.gather(*held)


async def test_turning_the_cache_off_forgets_it(stand: Stand) -> None:
    await post(stand, 1)
    stand.swap("device", reuse=ReuseSettings())
    assert cached(await post(stand, 1)) is None


async def test_turning_the_cache_off_under_a_request_harms_it_not(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keys(*given: Any) -> list[bytes]:
        stand.swap("device", reuse=ReuseSettings())
        return row_keys(*given)

    monkeypatch.setattr("deployments.gateway.pipeline.row_keys", keys)
    assert cached(await post(stand, 1)) is None


async def test_what_is_known_is_answered_though_the_queue_is_full(tmp_path: Path) -> None:
    small = {**CACHED, "queue": {"max_rows": 1}, "batch": {"max_size": 1}}
    async with standing({"device": small}, tmp_path, tenants=TENANTS) as stand:
        await post(stand, 1)
        channel = stand.channels["device"]
        channel.hold()
        held = [asyncio.create_task(post(stand, 100))]
        await channel.sent(2)
        held.append(asyncio.create_task(post(stand, 101)))
        await channel.sent(3)
        held.append(asyncio.create_task(post(stand, 102)))
        await stand.waiting("device", 1)
        assert (await post(stand, 103)).status == 503
        assert data(await post(stand, 1)) == [1]
        channel.let_go()
        await asyncio.gather(*held)


async def test_an_answer_too_large_for_the_cache_is_given_and_not_kept(tmp_path: Path) -> None:
    tiny = {**CACHED, "cache": {"max_bytes": 2000}}
    async with standing({"device": tiny}, tmp_path, tenants=TENANTS) as stand:
        assert [cached(await post(stand, 1)) for _ in range(2)] == [b"miss", b"miss"]


async def test_hits_are_counted_and_are_no_samples_of_queue_wait(stand: Stand) -> None:
    for _ in range(3):
        await post(stand, 1)
    lines = (await ask(stand.app, "GET", "/metrics")).body.decode().splitlines()
    model = '{gateway="gateway-0",model="device"}'
    assert f"headrace_response_cache_hits_total{model} 2.0" in lines
    assert f"headrace_response_cache_misses_total{model} 1.0" in lines
    assert f"headrace_response_cache_evictions_total{model} 0.0" in lines
    assert any(line.startswith(f"headrace_response_cache_bytes{model}") for line in lines)
    waits = [line for line in lines if line.startswith("headrace_queue_wait_seconds_count")]
    assert [line.rsplit(" ", 1)[1] for line in waits] == ["1.0"]
