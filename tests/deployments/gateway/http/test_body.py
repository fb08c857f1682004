"""Large bodies share a bounded memory and give it back; gzip inflates within a bound."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import Stand, ask, standing

from deployments.contract.errors import BadRequest, BodyTooLarge, Overloaded
from deployments.gateway import services
from deployments.gateway.http.body import UNBOUNDED, BodyBound, BodyLimits, BodyRoom, Inflation

INFER = "/v2/models/device/infer"
GOOD = b'{"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 1], "data": [4]}]}'
LARGE = GOOD + b" " * 1500


def inflate(body: bytes, most: int, bound: BodyBound = UNBOUNDED) -> bytes:
    inflation = Inflation(body, BodyLimits(most, most, 1.0, BodyRoom(1)), bound)
    while not inflation.is_measured:
        inflation.measure()
    return inflation.take()


def standing_with(folder: Path, **limits: Any) -> AbstractAsyncContextManager[Stand]:
    model = {"runtime": "synthetic", "options": {"base_ms": 0}}
    gateway = {"limits": {"max_held_bytes": 2000, **limits}}
    stand: AbstractAsyncContextManager[Stand] = standing({"device": model}, folder, gateway=gateway)
    return stand


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing_with(tmp_path) as stand:
        yield stand
        assert room_of(stand).held_bytes == 0


def room_of(stand: Stand) -> BodyRoom:
    room: BodyRoom = stand.app._pipeline._services.limits.room
    return room


@pytest.mark.parametrize(("others", "own", "more", "taken"), [
    (1, 0, 99, True), (1, 0, 100, False), (1, 50, 49, True), (1, 50, 50, False),
    (0, 0, 101, True), (0, 100, 100, True),
])  # fmt: skip
def test_what_goes_over_the_limit_is_refused_unless_it_is_alone(
    others: int, own: int, more: int, taken: bool
) -> None:
    room, quota_key = BodyRoom(100), ("a", 1.0)
    room.take(quota_key, others, 0)
    room.take(quota_key, own, 0 if others else own)
    before = room.held_bytes
    if taken:
        room.take(quota_key, more, own)
        assert room.held_bytes == before + more
    else:
        with pytest.raises(Overloaded):
            room.take(quota_key, more, own)
        assert room.held_bytes == before


@asynccontextmanager
async def half_of_a_large_body(stand: Stand) -> AsyncIterator[None]:
    """While the rest of it does not come; its caller leaves at the end."""
    leave = asyncio.Event()
    half = asyncio.create_task(ask(stand.app, "POST", INFER, body=[LARGE, None], leave=leave))
    while not room_of(stand).held_bytes:  # noqa: ASYNC110 - nothing tells of a part
        await asyncio.sleep(0)
    yield
    leave.set()
    assert (await half).status == 0


async def test_a_large_body_that_meets_another_is_503_and_small_ones_pass(stand: Stand) -> None:
    async with half_of_a_large_body(stand):
        refused = await ask(stand.app, "POST", INFER, body=[LARGE, b""])
        assert (refused.status, refused.header(b"retry-after")) == (503, b"1")
        assert "max_held_bytes" in json.loads(refused.body)["error"]
        assert (await ask(stand.app, "POST", INFER, body=GOOD)).status == 200
    assert (await ask(stand.app, "POST", INFER, body=[LARGE, b""])).status == 200


async def test_what_a_gzip_body_inflates_to_is_held_too(stand: Stand) -> None:
    zipped = [(b"content-encoding", b"gzip")]
    async with half_of_a_large_body(stand):
        answer = await ask(stand.app, "POST", INFER, zipped, gzip.compress(LARGE))
        assert answer.status == 503
    answer = await ask(stand.app, "POST", INFER, zipped, gzip.compress(LARGE))
    assert answer.status == 200


async def test_a_body_that_stops_coming_is_408_and_gives_its_memory_back(tmp_path: Path) -> None:
    async with standing_with(tmp_path, body_timeout_s=0.02) as stand:
        late = await ask(stand.app, "POST", INFER, body=[LARGE, None])
        assert (late.status, room_of(stand).held_bytes) == (408, 0)


@pytest.mark.parametrize("size", [0, 1, 2, 100])
def test_body_within_the_bound_is_inflated(size: int) -> None:
    assert inflate(gzip.compress(b"x" * size), 100) == b"x" * size


@pytest.mark.parametrize("size", [101, 1_000_000])
def test_body_over_the_bound_is_refused(size: int) -> None:
    with pytest.raises(BodyTooLarge, match="100 bytes") as caught:
        inflate(gzip.compress(b"x" * size), 100)
    assert caught.value.status == 413


def test_nothing_fits_a_bound_of_zero_but_nothing() -> None:
    assert inflate(gzip.compress(b""), 0) == b""
    with pytest.raises(BodyTooLarge):
        inflate(gzip.compress(b"x"), 0)


@pytest.mark.parametrize("cut", [0, 1, 5, 15, -1, -8])
def test_truncated_gzip_is_refused(cut: int) -> None:
    with pytest.raises(BadRequest, match="incomplete"):
        inflate(gzip.compress(b"hello world")[:cut], 100)


def test_what_is_no_gzip_is_refused() -> None:
    with pytest.raises(BadRequest, match="not valid gzip"):
        inflate(b'{"inputs": []}', 100)


def test_broken_checksum_is_refused() -> None:
    body = bytearray(gzip.compress(b"hello world"))
    body[-6] ^= 1
    with pytest.raises(BadRequest, match="not valid gzip"):
        inflate(bytes(body), 100)


def test_second_member_is_refused() -> None:
    with pytest.raises(BadRequest, match="single gzip member"):
        inflate(gzip.compress(b"a") * 2, 100)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_a_body_of_many_steps_is_whole(size: int) -> None:
    plain = random.Random(size).randbytes(size)
    assert inflate(gzip.compress(plain), 4_000_000) == plain
    assert inflate(gzip.compress(bytes(size)), 4_000_000) == bytes(size)


def test_inflating_ends_at_the_step_that_goes_over_the_bound() -> None:
    inflation = Inflation(
        gzip.compress(bytes(50_000_000)), BodyLimits(1, 2_000_000, 1.0, BodyRoom(1))
    )
    inflation.measure()
    with pytest.raises(BodyTooLarge, match="2000000 bytes"):
        inflation.measure()
    assert inflation.size_bytes <= 2_000_000 + (1 << 20)


def test_numbers_are_counted_while_inflating() -> None:
    bound = BodyBound(numbers=3, largest="one row")
    assert inflate(gzip.compress(b"[1,2,3,4]"), 100, bound) == b"[1,2,3,4]"
    with pytest.raises(BodyTooLarge, match="any request of one row: 3"):
        inflate(gzip.compress(b"[1,2,3,4,5]"), 100, bound)


async def test_another_tenants_large_body_finds_room_beside_one_that_has_it_all(
    tmp_path: Path,
) -> None:
    model = {"runtime": "synthetic", "options": {"base_ms": 0}}
    limits = {"max_held_bytes": 3200, "body_timeout_s": 0.1}
    tenants: dict[str, Any] = {"default": {}, "other": {}}
    async with standing(
        {"device": model}, tmp_path, gateway={"limits": limits}, tenants=tenants
    ) as stand:
        held = [
            asyncio.create_task(ask(stand.app, "POST", INFER, body=[LARGE, None])) for _ in "ab"
        ]
        while room_of(stand).held_bytes < 2 * len(LARGE):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        assert (await ask(stand.app, "POST", INFER, body=[LARGE, b""])).status == 503
        other = [(b"x-tenant", b"other")]
        assert (await ask(stand.app, "POST", INFER, other, [LARGE, b""])).status == 200
        assert [(await each).status for each in held] == [408, 408]


async def test_bodies_that_arrive_are_bounded_by_tenant(tmp_path: Path) -> None:
    model = {"runtime": "synthetic", "options": {"base_ms": 0}}
    limits = {"max_requests": 4, "body_timeout_s": 0.1}
    tenants: dict[str, Any] = {"default": {}, "other": {}}
    async with standing(
        {"device": model}, tmp_path, gateway={"limits": limits}, tenants=tenants
    ) as stand:
        held = [asyncio.create_task(ask(stand.app, "POST", INFER, body=[b"{", None])) for _ in "ab"]
        await asyncio.sleep(0)
        refused = await ask(stand.app, "POST", INFER, body=[b"{", None])
        assert (refused.status, refused.header(b"retry-after")) == (503, b"1")
        assert "half of gateway.limits.max_requests" in json.loads(refused.body)["error"]
        assert (await ask(stand.app, "POST", INFER, body=GOOD)).status == 200
        other = [(b"x-tenant", b"other")]
        assert (await ask(stand.app, "POST", INFER, other, [GOOD[:9], GOOD[9:]])).status == 200
        assert [(await each).status for each in held] == [408, 408]
        assert (await ask(stand.app, "POST", INFER, body=[GOOD[:9], GOOD[9:]])).status == 200


def test_a_body_is_due_by_its_rate_and_by_its_whole_time() -> None:
    limits = BodyLimits(1, 1, 30.0, BodyRoom(1), min_bytes_per_s=100.0, grace_s=5.0)
    assert [limits.due_s(size) for size in (0, 100, 2500, 10_000)] == [5.0, 6.0, 30.0, 30.0]
    assert replace(limits, min_bytes_per_s=0.0).due_s(0) == 30.0


async def test_a_body_in_drops_is_408_long_before_its_whole_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "SLOW_GRACE_S", 0.01)
    monkeypatch.setattr(services, "MIN_BYTES_PER_S", 100_000.0)
    model = {"runtime": "synthetic", "options": {"base_ms": 0}}
    limits = {"body_timeout_s": 3600}
    async with standing({"device": model}, tmp_path, gateway={"limits": limits}) as stand:
        answer = await ask(stand.app, "POST", INFER, body=[b"{", b" ", None])
        assert answer.status == 408
        assert "less than 100000 bytes a second came" in json.loads(answer.body)["error"]
