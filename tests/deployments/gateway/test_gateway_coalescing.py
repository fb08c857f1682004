"""Identical requests of one tenant that are under way together are one run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from held_calls import INFER, body_of, data, fill
from in_process import Answer, Stand, ask, standing

from deployments.contract import errors
from deployments.contract.channel.frames import BatchReply, RowError

SHARING = {
    "runtime": "synthetic",
    "options": {"base_ms": 0},
    "slo": {"latency_ms": 2000},
    "batch": {"max_size": 1},
    "coalesce": True,
}
TENANTS: dict[str, dict[str, str]] = {"a": {}, "b": {}, "default": {}}


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing({"device": SHARING}, tmp_path, replicas=2, tenants=TENANTS) as stand:
        yield stand


@pytest.fixture
def looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.gateway.http.exchange._WATCH_AFTER_S", 0.0)


def send(
    stand: Stand,
    *values: int,
    tenant: bytes = b"a",
    leave: asyncio.Event | None = None,
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> asyncio.Task[Answer]:
    head = [(b"x-tenant", tenant), *headers]
    call = ask(stand.app, "POST", INFER, head, body_of(list(values)), leave=leave)
    return asyncio.create_task(call)


async def following(stand: Stand, rows: int) -> None:
    """Returns once so many rows wait for another's run."""
    reuse = stand.models.served["device"].reuse
    assert reuse is not None
    for _ in range(1000):
        if reuse.levels().following_rows == rows:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{reuse.levels().following_rows} rows follow, not {rows}")


async def test_identical_requests_are_one_run(stand: Stand) -> None:
    channel = stand.channels["device"]
    channel.hold()
    calls = [send(stand, 7) for _ in range(20)]
    await channel.sent(1)
    await following(stand, 19)
    channel.let_go()
    answers = await asyncio.gather(*calls)
    assert [data(answer) for answer in answers] == [[7]] * 20
    assert len(channel.calls) == 1
    assert [a.header(b"x-coalesced") for a in answers] == [None] + [b"true"] * 19
    lines = (await ask(stand.app, "GET", "/metrics")).body.decode().splitlines()
    assert 'headrace_coalesced_total{gateway="gateway-0",model="device"} 19.0' in lines


async def test_requests_that_differ_in_one_row_are_two(stand: Stand) -> None:
    channel = stand.channels["device"]
    channel.hold()
    calls = [send(stand, 7), send(stand, 8), send(stand, 7, 8)]
    await channel.sent(4)
    channel.let_go()
    assert [data(await call) for call in calls] == [[7], [8], [7, 8]]


async def test_other_tenants_and_requests_that_say_so_run_by_themselves(stand: Stand) -> None:
    channel = stand.channels["device"]
    channel.hold()
    calls = [
        send(stand, 7),
        send(stand, 7, tenant=b"b"),
        send(stand, 7, headers=((b"x-idempotent", b"false"),)),
        send(stand, 7, headers=((b"cache-control", b"no-cache"),)),
    ]
    await channel.sent(4)
    channel.let_go()
    assert [data(answer) for answer in await asyncio.gather(*calls)] == [[7]] * 4


async def test_nothing_is_shared_unless_the_model_says_so(tmp_path: Path) -> None:
    alone = {**SHARING, "coalesce": False}
    async with standing({"device": alone}, tmp_path, replicas=2, tenants=TENANTS) as stand:
        stand.channels["device"].hold()
        calls = [send(stand, 7) for _ in range(3)]
        await stand.channels["device"].sent(3)
        stand.channels["device"].let_go()
        answers = await asyncio.gather(*calls)
        assert [answer.header(b"x-coalesced") for answer in answers] == [None] * 3


@pytest.mark.usefixtures("looked_at_once")
async def test_a_leader_that_disconnects_takes_no_follower_with_it(stand: Stand) -> None:
    channel = stand.channels["device"]
    channel.hold()
    leave = asyncio.Event()
    leader = send(stand, 7, leave=leave)
    await channel.sent(1)
    follower = send(stand, 7)
    await following(stand, 1)
    leave.set()
    assert (await leader).status == 0
    channel.let_go()
    assert data(await follower) == [7]
    assert len(channel.calls) == 1


@pytest.mark.usefixtures("looked_at_once")
async def test_when_all_have_left_the_place_in_the_queue_is_free(stand: Stand) -> None:
    held = await fill(stand)
    leave = asyncio.Event()
    calls = [send(stand, 7, leave=leave) for _ in range(3)]
    await following(stand, 2)
    await stand.waiting("device", 1)
    leave.set()
    assert [(await call).status for call in calls] == [0, 0, 0]
    assert stand.models.served["device"].queue.waiting_rows == 0
    stand.channels["device"].let_go()
    await asyncio.gather(*held)


async def test_a_leader_that_expires_leaves_its_followers_a_run(stand: Stand) -> None:
    held = await fill(stand)
    leader = send(stand, 7)
    await stand.waiting("device", 1)
    queue = stand.models.served["device"].queue
    pending = max(queue._pending.values(), key=lambda each: each.request.request_id)
    followers = [send(stand, 7) for _ in range(5)]
    await following(stand, 5)
    queue._finish(pending, errors.Expired("its time was up"))
    assert (await leader).status == 504
    await following(stand, 4)
    await stand.waiting("device", 1)
    stand.channels["device"].let_go()
    assert [data(await call) for call in followers] == [[7]] * 5
    assert len(stand.channels["device"].calls) == 5
    await asyncio.gather(*held)


async def test_a_follower_expires_by_its_own_clock(stand: Stand) -> None:
    channel = stand.channels["device"]
    channel.hold()
    leader = send(stand, 7)
    await channel.sent(1)
    assert (await send(stand, 7, headers=((b"x-timeout-ms", b"5"),))).status == 504
    channel.let_go()
    assert data(await leader) == [7]


async def test_the_more_urgent_do_not_wait_behind_bulk(stand: Stand) -> None:
    held = await fill(stand)
    bulk = send(stand, 7, headers=((b"x-priority", b"bulk"),))
    await stand.waiting("device", 1)
    urgent = send(stand, 7)
    await stand.waiting("device", 2)
    bulk_too = send(stand, 7, headers=((b"x-priority", b"bulk"),))
    await following(stand, 1)
    stand.channels["device"].let_go()
    for call in (bulk, urgent, bulk_too):
        assert data(await call) == [7]
    await asyncio.gather(*held)


async def test_a_fault_of_the_input_is_told_to_all(stand: Stand) -> None:
    channel = stand.channels["device"]
    channel.hold()
    fault = (RowError(0, True, "no such token"),)
    channel.script = [BatchReply(False, {}, fault, 0.0, 0.0, 0, (0.0,) * 5, 0, 0, 1, 0.0, 0.0)]
    calls = [send(stand, 7) for _ in range(3)]
    await following(stand, 2)
    channel.let_go()
    assert [(await call).status for call in calls] == [400] * 3
    assert len(channel.calls) == 1


async def test_followers_over_a_change_of_version_get_what_ran(stand: Stand) -> None:
    held = await fill(stand)
    before = [send(stand, 7) for _ in range(2)]
    await following(stand, 1)
    stand.swap("device", version="2")
    after = send(stand, 7)
    await stand.waiting("device", 2)
    stand.channels["device"].let_go()
    answers = await asyncio.gather(*before, after)
    assert [data(answer) for answer in answers] == [[7]] * 3
    assert all(b'"model_version":"2"' in answer.body for answer in answers)
    await asyncio.gather(*held)


async def test_what_many_asked_for_together_is_kept_once(tmp_path: Path) -> None:
    model = {**SHARING, "cache": {"max_bytes": 1_000_000}}
    async with standing({"device": model}, tmp_path, tenants=TENANTS) as stand:
        channel = stand.channels["device"]
        channel.hold()
        calls = [send(stand, 7) for _ in range(4)]
        await following(stand, 3)
        channel.let_go()
        assert [(await call).header(b"x-cache") for call in calls] == [b"miss"] * 4
        assert (await send(stand, 7)).header(b"x-cache") == b"hit"
        assert len(channel.calls) == 1
