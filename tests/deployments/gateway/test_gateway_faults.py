"""What becomes of callers when replicas die, hang, raise or are busy, when the queue is full, when
the server drains, and when a model changes hands. Calls are held on their way, so that a test
decides what happens first; the stand is empty and the books agree after each."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runtimes import Moody, Quotient
from held_calls import INFER, SYNTHETIC, body_of, busy, data, fill, send
from in_process import Answer, Stand, ask, standing
from msgspec.structs import replace

from deployments.contract.channel.frames import Kind, RowError
from deployments.gateway.queues.pending_requests import BatchEnd
from routers.shared.suspects import MAX_RUNS
from runtimes.errors import BadRows, OutOfMemory, RunError, Unhealthy
from runtimes.types import Ragged, TensorSpec


def mood(value: int) -> Exception | None:
    faults = {1: BadRows("row 1 is bad"), 2: RunError("the device stumbled"), 3: KeyError("odd")}
    return Unhealthy("broken") if value == 4 else faults.get(value)


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing({"device": SYNTHETIC}, tmp_path, replicas=2) as stand:
        yield stand


# ---- rows that fail -------------------------------------------------------------------------


@pytest.fixture
async def moody(tmp_path: Path) -> AsyncIterator[Stand]:
    models, fakes = {"device": SYNTHETIC}, {"device": Moody(mood)}
    async with standing(models, tmp_path, runtimes=fakes) as stand:
        yield stand


async def together(stand: Stand, values: list[int]) -> list[Answer]:
    """All in one batch, behind two held ones."""
    channel = stand.channels["device"]
    channel.hold()
    first = [asyncio.create_task(ask(stand.app, "POST", INFER, body=body_of([9], "x")))]
    await channel.sent(1)
    first.append(asyncio.create_task(ask(stand.app, "POST", INFER, body=body_of([9], "x"))))
    await channel.sent(2)
    calls = [
        asyncio.create_task(ask(stand.app, "POST", INFER, body=body_of([value], "x")))
        for value in values
    ]
    await stand.waiting("device", len(values))
    channel.let_go()
    answers = await asyncio.gather(*calls)
    await asyncio.gather(*first)
    return answers


async def test_one_bad_row_of_a_batch_fails_alone(moody: Stand) -> None:
    answers = await together(moody, [5, 1, 6, 7])
    assert [a.status for a in answers] == [200, 400, 200, 200]
    assert [data(a) for a in answers if a.status == 200] == [[5], [6], [7]]
    assert "row 1 is bad" in answers[1].body.decode()


@pytest.mark.parametrize("value", [2, 3])
async def test_a_row_on_which_the_runtime_raises_is_retried_once_then_503(
    moody: Stand, value: int
) -> None:
    answers = await together(moody, [5, value, 6])
    assert [a.status for a in answers] == [200, 503, 200]
    assert answers[1].header(b"retry-after") == b"1"
    assert b"stumbled" not in answers[1].body
    runtime = moody._runtimes["device"]
    alone = [b for b in runtime.batches if b.inputs["x"].data.tolist() == [value]]  # type: ignore[attr-defined]
    assert len(alone) == 2


async def test_a_row_that_fits_no_device_is_told_so_after_its_retry(tmp_path: Path) -> None:
    runtime = Moody(lambda value: OutOfMemory("CUDA out of memory") if value == 2 else None)
    async with standing({"device": SYNTHETIC}, tmp_path, runtimes={"device": runtime}) as stand:
        answers = await together(stand, [5, 2, 6])
        assert [a.status for a in answers] == [200, 503, 200]
        assert answers[1].header(b"retry-after") is None
        assert b"too little memory for this input" in answers[1].body
        assert b"CUDA" not in answers[1].body
        alone = [b for b in runtime.batches if b.inputs["x"].data.tolist() == [2]]
        assert len(alone) == 2
        page, _ = stand.telemetry.page("")
        assert b'reason="out_of_device_memory"' in page
        faults = float(page.split(b"headrace_memory_faults_total{gateway=")[1].split()[1])
        assert faults == sum([2 in b.inputs["x"].data for b in runtime.batches])


FAILED = replace(busy(), busy=False, errors=(RowError(0, False, "stumbled"),))


@pytest.mark.parametrize("script", [["gone", FAILED, FAILED], ["gone", "broken", FAILED]])
async def test_a_row_runs_three_times_at_most_whatever_becomes_of_it(
    tmp_path: Path, script: list[Any]
) -> None:
    async with standing({"device": SYNTHETIC}, tmp_path, replicas=3) as stand:
        channel = stand.channels["device"]
        channel.script = [*script, None]
        assert (await send(stand, 1)).status == 503
        assert len(channel.calls) == MAX_RUNS == 3


async def test_a_row_that_failed_once_is_answered_by_its_retry(tmp_path: Path) -> None:
    faults: list[Exception] = [RunError("once")]
    runtime = Moody(lambda value: faults.pop() if faults else None)
    async with standing({"device": SYNTHETIC}, tmp_path, runtimes={"device": runtime}) as stand:
        answer = await ask(stand.app, "POST", INFER, body=body_of([5], "x"))
        assert data(answer) == [5]


async def test_all_rows_of_a_batch_may_fail(moody: Stand) -> None:
    assert [a.status for a in await together(moody, [1, 1, 1])] == [400, 400, 400]


async def test_a_request_is_answered_whole_or_not_at_all(moody: Stand) -> None:
    answer = await ask(moody.app, "POST", INFER, body=body_of([5, 1, 6], "x"))
    assert answer.status == 400


async def test_an_unhealthy_device_counts_as_lost_and_has_no_other_to_quarantine(
    moody: Stand,
) -> None:
    answers = await together(moody, [5, 4])
    assert [a.status for a in answers] == [200, 503]


@pytest.fixture
async def dividing(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing({"device": SYNTHETIC}, tmp_path, runtimes={"device": Quotient()}) as stand:
        yield stand


async def test_a_row_without_a_finite_answer_is_an_error_and_no_null(dividing: Stand) -> None:
    answers = await together(dividing, [1, 0, 2])
    assert [a.status for a in answers] == [200, 500, 200]
    assert [data(a) for a in answers if a.status == 200] == [[1.0], [0.5]]
    assert b"not finite" in answers[1].body
    assert answers[1].header(b"retry-after") is None


async def test_a_row_without_a_finite_answer_runs_once_and_is_counted(dividing: Stand) -> None:
    assert (await ask(dividing.app, "POST", INFER, body=body_of([0], "x"))).status == 500
    assert len(dividing.channels["device"].calls) == 1
    page, _ = dividing.telemetry.page("")
    assert b'outcome="not_finite"' in page


async def test_where_the_settings_say_so_infinity_is_answered(tmp_path: Path) -> None:
    model, fakes = {**SYNTHETIC, "allow_non_finite": True}, {"device": Quotient()}
    async with standing({"device": model}, tmp_path, runtimes=fakes) as stand:
        assert (await ask(stand.app, "POST", INFER, body=body_of([0], "x"))).status == 200


# ---- rows that end replicas ---------------------------------------------------------------------


def fragile(tmp_path: Path, replicas: int) -> AbstractAsyncContextManager[Stand]:
    """Replicas that are lost with each row of 4 and more."""
    runtime = Moody(lambda value: Unhealthy("broken") if value >= 4 else None)
    models = {"device": {**SYNTHETIC, "crashes": {"hold_s": 0, "tenant_budget": 4}}}
    tenants = {"acme": {}, "other": {}}
    fakes = {"device": runtime}
    return standing(models, tmp_path, replicas=replicas, runtimes=fakes, tenants=tenants)


@pytest.fixture
async def fatal(tmp_path: Path) -> AsyncIterator[Stand]:
    async with fragile(tmp_path, replicas=2) as stand:
        yield stand


async def asks(stand: Stand, *values: int, tenant: str = "acme", **more: Any) -> Answer:
    headers = [(b"x-tenant", tenant.encode()), *more.pop("headers", [])]
    return await ask(stand.app, "POST", INFER, headers, body_of(list(values), "x"), **more)


def sent(stand: Stand) -> int:
    return len(stand.channels["device"].calls)


async def all_busy(stand: Stand) -> list[asyncio.Task[Answer]]:
    """Requests that take every slot, held on their way."""
    channel = stand.channels["device"]
    channel.hold()
    held = []
    for count in range(1, 5):
        held.append(asyncio.create_task(asks(stand, 1)))
        await channel.sent(count)
    return held


async def test_a_row_that_ends_two_replicas_is_refused_and_nobody_invites_it_back(
    fatal: Stand,
) -> None:
    quarantined = await asks(fatal, 4)
    assert (quarantined.status, quarantined.header(b"retry-after")) == (422, None)
    assert b"do not send it again" in quarantined.body
    assert sent(fatal) == 2
    again = [await asks(fatal, 4, tenant=tenant) for tenant in ("acme", "other")]
    assert [a.status for a in again] == [422, 422]
    assert sent(fatal) == 2
    assert (await asks(fatal, 3)).status == 200


async def test_who_shared_a_batch_with_it_is_answered(fatal: Stand) -> None:
    channel = fatal.channels["device"]
    held = await all_busy(fatal)
    calls = [asyncio.create_task(asks(fatal, value)) for value in (1, 4, 2, 3)]
    await fatal.waiting("device", 4)
    channel.let_go()
    assert [(await call).status for call in calls] == [200, 422, 200, 200]
    assert [(await call).status for call in held] == [200] * 4


async def test_all_that_send_it_at_once_are_refused_with_the_first(fatal: Stand) -> None:
    channel = fatal.channels["device"]
    held = await all_busy(fatal)
    calls = [asyncio.create_task(asks(fatal, 4)) for _ in range(8)]
    await fatal.waiting("device", 8)
    channel.let_go()
    assert {(await call).status for call in calls} == {422}
    assert [(await call).status for call in held] == [200] * 4
    fatal_runs = [b for b in channel.calls if 4 in b[1].inputs["x"].data]
    assert len(fatal_runs) <= 3


async def test_a_replica_that_is_well_and_has_no_answer_quarantines_nobody(fatal: Stand) -> None:
    channel = fatal.channels["device"]
    channel.fault, channel.script = Kind.UNSENT, ["too large for a frame"] * 4
    refused = await asks(fatal, 3)
    assert (refused.status, refused.header(b"retry-after")) == (503, b"1")
    channel.script.clear()
    assert (await asks(fatal, 3)).status == 200


async def test_one_that_may_not_run_twice_is_quarantined_by_the_next_that_sends_it(
    fatal: Stand,
) -> None:
    once = [(b"x-idempotent", b"false")]
    assert (await asks(fatal, 4, headers=once)).status == 503
    assert (await asks(fatal, 4, headers=once)).status == 422
    assert (await asks(fatal, 4)).status == 422
    assert sent(fatal) == 2


async def test_a_tenant_that_has_spent_its_budget_is_refused_and_others_are_not(
    tmp_path: Path,
) -> None:
    async with fragile(tmp_path, replicas=4) as stand:
        assert [(await asks(stand, value)).status for value in (4, 5)] == [422, 422]
        refused = await asks(stand, 1)
        assert refused.status == 429
        assert 0 < int(refused.header(b"retry-after") or 0) <= 600
        assert (await asks(stand, 1, tenant="other")).status == 200


async def test_a_replica_that_two_inputs_lost_is_charged_once(fatal: Stand) -> None:
    """It comes back under its name: the process lives, and only its connection was lost."""
    assert [(await asks(fatal, value)).status for value in (4, 5)] == [422, 422]
    assert (await asks(fatal, 1)).status == 200


# ---- replicas that are lost -------------------------------------------------------------------


async def test_members_of_a_lost_batch_are_retried_singly_on_another_replica(stand: Stand) -> None:
    held = await fill(stand)
    channel = stand.channels["device"]
    calls = [send(stand, n) for n in (1, 2, 3)]
    await stand.waiting("device", 3)
    channel.script = [None, None, None, None, "gone"]
    channel.let_go()
    assert [data(await call) for call in calls] == [[1], [2], [3]]
    await asyncio.gather(*held)
    lost_by, lost = channel.calls[4]
    retries = channel.calls[5:]
    assert len(lost.lengths) == 3 * 4
    assert [len(call.lengths) for _, call in retries] == [4, 4, 4]
    assert lost_by not in {replica for replica, _ in retries}


async def test_a_connection_that_breaks_loses_what_was_out_on_it_and_nothing_else(
    stand: Stand,
) -> None:
    held = await fill(stand)
    channel = stand.channels["device"]
    there = [replica for replica, _ in channel.calls].count("device-0")
    channel.lose("device-0")
    channel.let_go()
    assert [data(await call) for call in held] == [[101], [102], [103], [104]]
    assert stand.models.served["device"].queue.calls.ends[BatchEnd.LOST] == there == 2
    assert {replica for replica, _ in channel.calls[4:]} == {"device-1"}


async def test_a_request_that_is_lost_each_time_is_503_with_retry_after(stand: Stand) -> None:
    channel = stand.channels["device"]
    channel.script = ["gone", "broken", "away"]
    answer = await send(stand, 1)
    assert (answer.status, answer.header(b"retry-after")) == (503, b"1")
    assert len({replica for replica, _ in channel.calls}) == 2


async def test_without_retry_a_lost_request_is_503_at_once(tmp_path: Path) -> None:
    async with standing({"device": {**SYNTHETIC, "retry": False}}, tmp_path, replicas=2) as stand:
        stand.channels["device"].script = ["gone"]
        assert (await send(stand, 1)).status == 503
        assert len(stand.channels["device"].calls) == 1


async def test_a_call_that_never_arrived_harms_nobody(stand: Stand) -> None:
    channel = stand.channels["device"]
    channel.gone = {"device-0"}
    assert [data(await send(stand, n)) for n in range(4)] == [[0], [1], [2], [3]]
    assert "device-0" in {replica for replica, _ in channel.calls}


async def test_a_hang_past_the_limit_counts_as_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.gateway.queues.lease_calls._LATE_EVERY_S", 0.005)
    model = {**SYNTHETIC, "options": {"base_ms": 0, "hang_ids": [7], "hang_s": 0.2}}
    async with standing({"device": model}, tmp_path, replicas=2) as stand:
        queue = stand.models._served["device"].queue
        object.__setattr__(queue.terms, "call_limit_s", 0.01)
        assert (await send(stand, 7)).status == 422
        assert sorted({r for r, _ in stand.channels["device"].calls}) == ["device-0", "device-1"]
        assert [core.inflight for core in stand.channels["device"].cores.values()] == [1, 1]
        stand._workers[0]._runtime.close()
        stand._workers[1]._runtime.close()


async def test_rows_that_a_busy_replica_returned_keep_their_order(tmp_path: Path) -> None:
    model = {**SYNTHETIC, "batch": {"max_size": 1}, "replicas": {"slots": 1}}
    async with standing({"device": model}, tmp_path) as stand:
        channel = stand.channels["device"]
        channel.hold()
        calls = [send(stand, 1)]
        await channel.sent(1)
        calls += [send(stand, 2), send(stand, 3)]
        await stand.waiting("device", 2)
        channel.script = [busy()]
        channel.let_go()
        assert [data(await call) for call in calls] == [[1], [2], [3]]
        sent = [call.inputs["ids"].data.tolist() for _, call in channel.calls]
        assert sent[0] == sent[1] == [1]


async def test_a_reply_that_makes_no_sense_is_503_and_nothing_is_left(
    stand: Stand, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("headrace"), "propagate", True)
    column = {"sum": Ragged("FP32", np.zeros(3, np.float32), ((), (), ()))}
    nonsense = replace(busy(), busy=False, outputs=column)
    stand.channels["device"].script = [nonsense]
    assert (await send(stand, 1)).status == 503
    assert "what replica device-0 sent cannot be used: the reply to 1 rows" in caplog.text
    assert data(await send(stand, 2)) == [2]


async def test_a_broken_listener_leaves_nothing_open(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = stand.models._served["device"].queue
    monkeypatch.setattr(queue, "_on_batch", lambda record: 1 / 0)
    assert (await send(stand, 1)).status == 503


# ---- full, draining, changing hands -------------------------------------------------------------


async def test_a_full_queue_is_503_with_retry_after_and_the_body_is_not_read(
    tmp_path: Path,
) -> None:
    model = {**SYNTHETIC, "queue": {"max_rows": 2}, "replicas": {"slots": 1}}
    async with standing({"device": model}, tmp_path) as stand:
        channel = stand.channels["device"]
        channel.hold()
        calls = [send(stand, 1)]
        await channel.sent(1)
        assert (await send(stand, 1, 2, 3)).status == 400  # could never be queued
        calls.append(send(stand, 2))
        await stand.waiting("device", 1)
        assert (await send(stand, 3, 4)).status == 503  # one too many
        calls.append(send(stand, 5))
        await stand.waiting("device", 2)
        refused = await ask(stand.app, "POST", INFER, body=[None])
        assert (refused.status, refused.header(b"retry-after")) == (503, b"1")
        channel.let_go()
        assert [data(await call) for call in calls] == [[1], [2], [5]]


async def test_a_gateway_takes_no_more_requests_than_it_may_have_under_way(tmp_path: Path) -> None:
    gateway, tenants = {"limits": {"max_requests": 2}}, {"default": {}, "other": {}}
    async with standing({"device": SYNTHETIC}, tmp_path, gateway=gateway, tenants=tenants) as stand:
        channel = stand.channels["device"]
        channel.hold()
        calls = [send(stand, 1)]
        await channel.sent(1)
        calls.append(send(stand, 2))
        await channel.sent(2)
        refused = await ask(stand.app, "POST", INFER, body=[None])
        assert (refused.status, refused.header(b"retry-after")) == (503, b"1")
        assert b"gateway.limits.max_requests" in refused.body
        # A tenant that has none under way is taken all the same; this one leaves at once.
        leave = asyncio.Event()
        leave.set()
        other = [(b"x-tenant", b"other")]
        assert (await ask(stand.app, "POST", INFER, other, [b"{", None], leave)).status == 0
        assert (await ask(stand.app, "GET", "/healthz")).status == 200
        channel.let_go()
        assert [data(await call) for call in calls] == [[1], [2]]
        assert data(await send(stand, 3)) == [3]


async def test_draining_refuses_the_new_and_finishes_what_runs(stand: Stand) -> None:
    stand.channels["device"].hold()
    running = send(stand, 1)
    await stand.channels["device"].sent(1)
    stand.models.draining = True
    refused = await send(stand, 2)
    assert (refused.status, refused.header(b"retry-after")) == (503, b"2")
    ready = await ask(stand.app, "GET", "/readyz")
    assert (ready.status, ready.header(b"retry-after")) == (503, b"2")
    assert (await ask(stand.app, "GET", "/healthz")).status == 200
    stand.channels["device"].let_go()
    assert data(await running) == [1]


async def test_a_ready_server_names_the_optional_models_that_it_is_ready_without(
    stand: Stand,
) -> None:
    stand.models._declared |= {"extra", "later"}
    stand.models._optional = frozenset({"extra"})
    ready = await ask(stand.app, "GET", "/readyz")
    assert (ready.status, json.loads(ready.body)) == (
        200,
        {
            "ready": True,
            "waiting": {
                "extra": "declared but not ready yet (nothing waits for it: it is optional)"
            },
        },
    )
    stand.models._failures = {"extra": "no file m.onnx"}
    reason = "cannot start: no file m.onnx (nothing waits for it: it is optional)"
    ready = await ask(stand.app, "GET", "/readyz")
    assert json.loads(ready.body)["waiting"] == {"extra": reason}
    index = json.loads((await ask(stand.app, "POST", "/v2/repository/index")).body)
    entry = {"name": "extra", "version": "", "state": "UNAVAILABLE", "reason": reason}
    assert entry in index
    refused = await ask(stand.app, "POST", "/v2/models/extra/infer", [], b"{}")
    assert "model extra cannot start: no file m.onnx" in refused.body.decode()
    page = (await ask(stand.app, "GET", "/metrics")).body.decode()
    assert 'headrace_model_ready{gateway="gateway-0",model="extra",optional="true"} 0.0' in page
    assert 'headrace_model_ready{gateway="gateway-0",model="device",optional="false"} 1.0' in page


async def test_a_withdrawn_model_refuses_what_waits_and_finishes_what_runs(stand: Stand) -> None:
    held = await fill(stand)
    waiting = send(stand, 1)
    await stand.waiting("device", 1)
    stand.models._served["device"].queue.close()
    assert (await waiting).status == 503
    stand.channels["device"].let_go()
    assert [data(await call) for call in held] == [[101], [102], [103], [104]]


async def test_the_queue_holds_while_no_replica_runs(stand: Stand) -> None:
    stand.run_replicas("device", [])
    waiting = send(stand, 1)
    await stand.waiting("device", 1)
    stand.run_replicas("device", ["device-1"])
    assert data(await waiting) == [1]


async def test_what_waits_is_answered_by_a_new_version_of_equal_tensors(stand: Stand) -> None:
    held = await fill(stand)
    before = stand.models.find("device").description.version
    waiting = send(stand, 1)
    await stand.waiting("device", 1)
    stand.swap("device", version="v2")
    stand.channels["device"].let_go()
    assert json.loads((await waiting).body)["model_version"] == "v2"
    assert {json.loads((await call).body)["model_version"] for call in held} == {before}


async def test_rows_parsed_for_other_tensors_never_reach_the_new_version(stand: Stand) -> None:
    held = await fill(stand)
    waiting = send(stand, 1)
    await stand.waiting("device", 1)
    sent = len(stand.channels["device"].calls)
    stand.swap("device", version="v2", inputs=(TensorSpec("other", "INT64", (-1, -1)),))
    refused = await waiting
    assert (refused.status, refused.header(b"retry-after")) == (503, b"1")
    stand.channels["device"].let_go()
    assert [data(await call) for call in held] == [[101], [102], [103], [104]]
    assert len(stand.channels["device"].calls) == sent


async def test_rows_that_come_back_after_such_a_change_are_refused_too(stand: Stand) -> None:
    channel = stand.channels["device"]
    channel.hold()
    running = send(stand, 1)
    await channel.sent(1)
    stand.swap("device", version="v2", outputs=(TensorSpec("other", "FP32", (-1,)),))
    channel.script = ["gone"]
    channel.let_go()
    assert (await running).status == 503
    assert len(channel.calls) == 1


async def test_a_request_for_one_version_is_not_answered_by_another(stand: Stand) -> None:
    held = await fill(stand)
    version = stand.models.find("device").description.version
    path = f"/v2/models/device/versions/{version}/infer"
    waiting = asyncio.create_task(ask(stand.app, "POST", path, body=body_of([1])))
    await stand.waiting("device", 1)
    stand.swap("device", version="v2")
    stand.channels["device"].let_go()
    assert (await waiting).status == 503
    await asyncio.gather(*held)


async def test_the_log_of_a_refused_request_carries_its_id(
    stand: Stand, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("headrace"), "propagate", True)
    stand.channels["device"].script = ["a", "b", "c"]
    await send(stand, 1, headers=[(b"x-request-id", b"find-me")])
    lines = [r for r in caplog.records if r.name == "headrace.access"]
    assert {line.__dict__["request_id"] for line in lines} == {"find-me"}
