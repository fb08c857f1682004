"""Callers that leave and requests whose time is up, queued or running: the place is free, nothing
counts as an answer, a late reply harms nobody. The stand is empty and the books agree after
each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_engines import until
from fake_runtimes import Encoder, Gated
from held_calls import INFER, SYNTHETIC, body_of, data, fill, send
from in_process import Stand, ask, standing

from deployments.gateway.queues.pending_requests import BatchEnd


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing({"device": SYNTHETIC}, tmp_path, replicas=2) as stand:
        yield stand


@pytest.fixture
def looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.gateway.http.exchange._WATCH_AFTER_S", 0.0)


@pytest.mark.usefixtures("looked_at_once")
async def test_a_caller_that_leaves_the_queue_frees_its_place(stand: Stand) -> None:
    held = await fill(stand)
    leave = asyncio.Event()
    leaver, stayer = send(stand, 1, leave=leave), send(stand, 2)
    await stand.waiting("device", 2)
    leave.set()
    assert (await leaver).status == 0
    assert stand.models._served["device"].queue.waiting_rows == 1
    stand.channels["device"].let_go()
    assert data(await stayer) == [2]
    await asyncio.gather(*held)


@pytest.mark.usefixtures("looked_at_once")
async def test_a_batch_whose_callers_all_left_before_it_started_never_runs(tmp_path: Path) -> None:
    """It has been sent: it waits at the replica behind one that runs."""
    runtime = Gated()
    models, fakes = {"device": SYNTHETIC}, {"device": runtime}
    async with standing(models, tmp_path, runtimes=fakes) as stand:
        channel, leave = stand.channels["device"], asyncio.Event()
        calls = stand.models.served["device"].queue.calls
        stayer = asyncio.create_task(ask(stand.app, "POST", INFER, body=body_of([1], "x")))
        await channel.sent(1)
        body = body_of([7], "x")
        leaver = asyncio.create_task(ask(stand.app, "POST", INFER, body=body, leave=leave))
        await channel.sent(2)
        leave.set()
        assert (await leaver).status == 0
        await until(lambda: calls.ends[BatchEnd.DROPPED] == 1)
        runtime.let.set()
        assert data(await stayer) == [1]
        await stand.settled()
        assert channel.drops == [("device-0", 2)]
        assert [batch.inputs["x"].data.tolist() for batch in runtime.batches] == [[1]]
        lines = (await ask(stand.app, "GET", "/metrics")).body.decode().splitlines()
        (dropped,) = [n for n in lines if "batches_total{" in n and 'end="dropped"' in n]
        assert dropped.endswith(" 1.0")


@pytest.mark.usefixtures("looked_at_once")
async def test_a_batch_that_started_before_its_callers_left_runs_to_its_end(tmp_path: Path) -> None:
    runtime = Gated()
    models, fakes = {"device": SYNTHETIC}, {"device": runtime}
    async with standing(models, tmp_path, runtimes=fakes) as stand:
        leave, calls = asyncio.Event(), stand.models.served["device"].queue.calls
        body = body_of([7], "x")
        leaver = asyncio.create_task(ask(stand.app, "POST", INFER, body=body, leave=leave))
        await until(runtime.begun.is_set)
        leave.set()
        assert (await leaver).status == 0
        runtime.let.set()
        await stand.settled()
        assert stand.channels["device"].drops == [("device-0", 1)]
        assert calls.ends[BatchEnd.UNUSED] == 1


@pytest.mark.usefixtures("looked_at_once")
async def test_a_caller_that_left_is_counted_as_cancelled_and_is_no_latency_sample(
    stand: Stand,
) -> None:
    stand.channels["device"].hold()
    leave = asyncio.Event()
    leaver = send(stand, 1, leave=leave)
    await stand.channels["device"].sent(1)
    leave.set()
    await leaver
    stand.channels["device"].let_go()
    lines = (await ask(stand.app, "GET", "/metrics")).body.decode().splitlines()
    assert any("requests_total{" in line and 'outcome="cancelled"' in line for line in lines)
    assert not any("request_seconds_count{" in line and "device" in line for line in lines)


async def test_a_request_that_is_cancelled_from_outside_leaves_nothing(stand: Stand) -> None:
    held = await fill(stand)
    caller = send(stand, 1)
    await stand.waiting("device", 1)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert stand.models._served["device"].queue.waiting_rows == 0
    stand.channels["device"].let_go()
    await asyncio.gather(*held)


async def test_a_caller_that_leaves_before_its_body_is_complete_gets_nothing(stand: Stand) -> None:
    leave = asyncio.Event()
    leave.set()
    for path in (INFER, "/v2/repository/index"):
        answer = await ask(stand.app, "POST", path, body=[b"{", None], leave=leave)
        assert answer.status == 0


async def test_a_request_expires_while_it_waits(stand: Stand) -> None:
    held = await fill(stand)
    answer = await send(stand, 1, headers=[(b"x-timeout-ms", b"5")])
    assert (answer.status, list(json.loads(answer.body))) == (504, ["error"])
    stand.channels["device"].let_go()
    await asyncio.gather(*held)


@pytest.mark.parametrize(
    "header", [(b"x-timeout-ms", b"5"), (b"x-request-timeout-seconds", b"0.025")]
)
async def test_a_request_expires_while_it_runs(stand: Stand, header: tuple[bytes, bytes]) -> None:
    stand.channels["device"].hold()
    assert (await send(stand, 1, headers=[header])).status == 504
    stand.channels["device"].let_go()


async def test_a_time_of_days_is_cut_to_the_longest_that_the_model_gives(tmp_path: Path) -> None:
    slo = {"latency_ms": 1, "timeout_ms": 2, "max_timeout_ms": 5}
    async with standing({"device": {**SYNTHETIC, "slo": slo}}, tmp_path) as stand:
        stand.channels["device"].hold()
        for days in (b"950400000", b"6"):
            assert (await send(stand, 1, headers=[(b"x-timeout-ms", days)])).status == 504
        stand.channels["device"].let_go()


async def test_an_embeddings_request_expires_in_openais_shape(tmp_path: Path) -> None:
    model = {**SYNTHETIC, "task": "embed"}
    async with standing({"e": model}, tmp_path, runtimes={"e": Encoder()}) as stand:
        stand.channels["e"].hold()
        headers, body = [(b"x-timeout-ms", b"5")], b'{"model": "e", "input": [1]}'
        answer = await ask(stand.app, "POST", "/v1/embeddings", headers, body)
        assert answer.status == 504
        assert json.loads(answer.body)["error"]["type"] == "server_error"
        stand.channels["e"].let_go()


async def test_a_late_answer_to_a_request_that_expired_is_ignored(stand: Stand) -> None:
    stand.channels["device"].hold()
    call = send(stand, 1, headers=[(b"x-timeout-ms", b"5")])
    assert (await call).status == 504
    again = send(stand, 2)
    stand.channels["device"].let_go()
    assert data(await again) == [2]
