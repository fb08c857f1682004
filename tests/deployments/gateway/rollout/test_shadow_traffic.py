"""ShadowTraffic of answered requests: compared, counted, and nobody's burden."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from fake_runtimes import Moody, Quotient
from in_process import Stand, ask
from rolling_out import (
    CANARY,
    INFER,
    LIVE,
    body_of,
    content,
    post,
    rolling_out,
    seen,
    send,
    version_of,
)

from deployments.contract.rollout.terms import AgreementTerms
from deployments.gateway.queues.lost_replicas import fingerprints
from deployments.gateway.rollout import shadow_traffic
from deployments.gateway.rollout.shadow_traffic import ShadowTraffic
from runtimes.types import Batch, Ragged, Result, StageTimes

NEAR = AgreementTerms(max_abs=0)


class Wrong(Moody):
    """Gives another value than it got for rows from 100 on."""

    def run(self, batch: Batch) -> Result:
        values = batch.inputs["x"]
        wrong = values.data + (values.data >= 100)
        return Result(
            {"y": Ragged("INT64", wrong, values.shapes)}, StageTimes(run_s=0.001), batch.rows
        )


async def copied(stand: Stand) -> None:
    """Returns once no copy is under way."""
    under_way = stand.app.rollouts._copies._under_way
    for _ in range(100):
        await asyncio.sleep(0)
    async with asyncio.timeout(5.0):
        while under_way:
            await asyncio.wait(list(under_way))


async def test_copies_are_compared_row_by_row_and_each_counts_once(tmp_path: Path) -> None:
    async with rolling_out(tmp_path, runtimes={CANARY: Wrong(content)}) as stand:
        stand.route(LIVE, 0.0, 1.0, agreement=NEAR)
        for values in ((1, 2, 3), (4, 100), (200,)):
            assert version_of(await post(stand, *values)) == "1"
        await copied(stand)
        found = seen(stand)
        assert (found.compared, found.agreed) == (3, 1)
        assert (found.copies.answered, found.copies.failed) == (3, 0)
        assert sum(sum(each.values()) for each in found.copies.latencies.values()) == 3
        assert (found.live.answered, found.canary.answered) == (3, 0)


async def test_a_row_that_the_canary_died_of_twice_counts_against_it_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, make = [], ShadowTraffic.make

    def remembered(self: ShadowTraffic, canary: Any, answered: Any, *more: Any) -> None:
        made.append((canary, answered))
        make(self, canary, answered, *more)

    monkeypatch.setattr(ShadowTraffic, "make", remembered)
    async with rolling_out(tmp_path) as stand:
        stand.route(LIVE, 0.0, 1.0)
        await post(stand, 1)
        await copied(stand)
        canary, answered = made[0]
        (key,) = fingerprints(answered.rows, canary.description.version)
        for replica in ("a", "b"):
            canary.queue.crashes.lost(
                key, shadow_traffic.TENANT, replica, monotonic(), begun_alone=True
            )
        for value in (1, 1, 2):
            await post(stand, value)
            await copied(stand)
        found = seen(stand).copies
        assert (found.answered, found.failed) == (2, 2)
        assert found.reasons == {"input_ends_replicas": 2}


async def test_exactly_the_share_is_copied(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        stand.route(LIVE, 0.0, 0.3)
        for _ in range(100):
            await post(stand)
            await copied(stand)
        assert seen(stand).copies.answered == 30


async def test_what_the_canary_answered_is_not_copied(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        stand.route(LIVE, 0.5, 1.0)
        for _ in range(20):
            await post(stand)
            await copied(stand)
        found = seen(stand)
        assert (found.live.answered, found.canary.answered, found.copies.answered) == (10, 10, 10)


async def test_what_the_canary_has_failed_already_is_not_copied(tmp_path: Path) -> None:
    async with rolling_out(tmp_path, mood=lambda _: RuntimeError("no")) as stand:
        stand.route(LIVE, 1.0, 1.0)
        assert version_of(await post(stand)) == "1"
        await copied(stand)
        assert len(stand.channels[CANARY].calls) == 1
        assert seen(stand).copies.requests == 0


async def test_a_gateway_that_drains_begins_no_copy(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        stand.route(LIVE, 0.0, 1.0)
        stand.channels[LIVE].hold()
        call = send(stand)
        await stand.channels[LIVE].sent(1)
        stand.models.draining = True
        stand.channels[LIVE].let_go()
        assert version_of(await call) == "1"
        await copied(stand)
        assert not stand.channels[CANARY].calls


async def test_nothing_is_copied_that_must_not_run_twice(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        stand.route(LIVE, 0.0, 1.0)
        assert version_of(await post(stand, headers=[(b"x-idempotent", b"false")])) == "1"
        assert (await post(stand, path="/v2/models/m/versions/9/infer")).status == 404
        await copied(stand)
        assert not stand.channels[CANARY].calls


async def test_a_copy_holds_up_no_caller_and_few_are_under_way(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        stand.route(LIVE, 0.0, 1.0)
        stand.channels[CANARY].hold()
        for value in range(3 * shadow_traffic.MOST):
            assert version_of(await post(stand, value)) == "1"
        queue = stand.models.queued[CANARY].queue
        assert queue.inflight == shadow_traffic.MOST
        assert {flow.tenant for flow in queue.snapshot().flows} == {shadow_traffic.TENANT}
        stand.channels[CANARY].let_go()
        await copied(stand)
        assert seen(stand).copies.answered == shadow_traffic.MOST


async def test_what_is_large_in_all_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_traffic, "MAX_BYTES", 300)
    async with rolling_out(tmp_path) as stand:
        stand.route(LIVE, 0.0, 1.0)
        stand.channels[CANARY].hold()
        for _ in range(9):
            await post(stand)
        answer_bytes = 8  # an INT64, of both versions
        assert stand.models.queued[CANARY].queue.inflight == 300 // (
            len(body_of(7)) + 2 * answer_bytes
        )
        stand.channels[CANARY].let_go()
        await copied(stand)


async def test_a_copy_that_fails_is_counted_and_fails_no_caller(tmp_path: Path) -> None:
    def mood(value: int) -> Exception | None:
        return RuntimeError("no") if value == 1 else None

    async with rolling_out(tmp_path, mood=mood) as stand:
        stand.route(LIVE, 0.0, 1.0)
        assert version_of(await post(stand, 1)) == "1"
        await copied(stand)
        found = seen(stand)
        assert (found.copies.failed, found.copies.reasons) == (1, {"inference_failed": 1})
        assert (found.live.failed, found.canary.failed, found.compared) == (0, 0, 0)


async def test_a_canary_that_goes_ends_its_copies(tmp_path: Path) -> None:
    async with rolling_out(tmp_path, canary={"batch": {"max_size": 1}}) as stand:
        stand.route(LIVE, 0.0, 1.0)
        channel = stand.channels[CANARY]
        channel.hold()
        for _ in range(8):
            await post(stand)
        channel.lose(f"{CANARY}-0")
        await copied(stand)
        assert seen(stand).copies.answered == 0
        assert version_of(await post(stand)) == "1"


async def test_other_outputs_disagree_and_other_inputs_fail(tmp_path: Path) -> None:
    async with rolling_out(tmp_path, runtimes={CANARY: Quotient()}) as stand:
        stand.route(LIVE, 0.0, 1.0, agreement=NEAR)
        assert version_of(await post(stand)) == "1"
        await copied(stand)
        assert (seen(stand).compared, seen(stand).agreed) == (1, 0)
    other: dict[str, Any] = {CANARY: None}
    async with rolling_out(tmp_path, runtimes=other) as stand:  # the synthetic device takes `ids`
        stand.route(LIVE, 0.0, 1.0)
        assert version_of(await post(stand)) == "1"
        await copied(stand)
        assert seen(stand).copies.reasons == {shadow_traffic.OTHER_INPUTS: 1}


async def test_a_copy_costs_the_tenant_nothing_and_leaves_no_trace(tmp_path: Path) -> None:
    tenants = {"default": {"rate": {"tokens_per_s": 1, "burst_s": 3}}}
    keeps = {"cache": {"max_bytes": 100_000}}
    record = {"record": {"folder": str(tmp_path / "kept")}}
    async with rolling_out(tmp_path, live=record, canary=keeps | record, tenants=tenants) as stand:
        stand.route(LIVE, 0.0, 1.0)
        answers = [await post(stand, value) for value in range(4)]
        await copied(stand)
        assert [answer.status for answer in answers] == [200, 200, 200, 429]
        recorder = stand.models.served[LIVE].recorder
        assert recorder is not None
        assert len(recorder._lines) == 3
        canary = stand.models.queued[CANARY]
        assert canary.recorder is None
        assert canary.reuse is not None
        cache = canary.reuse.levels().cache
        assert cache is not None
        assert cache.entries == 0


async def test_what_the_canary_answers_is_recorded_once(tmp_path: Path) -> None:
    def mood(value: int) -> Exception | None:
        return RuntimeError("no") if value == 1 else None

    record = {"record": {"folder": str(tmp_path / "kept")}}
    async with rolling_out(tmp_path, live=record, canary=record, mood=mood) as stand:
        assert version_of(await post(stand, 0)) == "2"
        assert version_of(await post(stand, 1)) == "1"
        recorder = stand.models.served[LIVE].recorder
        assert recorder is not None
        assert len(recorder._lines) == 2


async def test_the_answer_is_sent_before_the_copy_begins(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        stand.route(LIVE, 0.0, 1.0)
        order: list[str] = []
        queue = stand.models.queued[CANARY].batches
        submit = queue.submit
        queue.submit = lambda *args: (order.append("copy"), submit(*args))[1]  # type: ignore
        answer = await ask(stand.app, "POST", INFER, (), body_of(1))
        order.append("answer")
        await copied(stand)
        assert order == ["answer", "copy"]
        assert json.loads(answer.body)["outputs"][0]["data"] == [1]
