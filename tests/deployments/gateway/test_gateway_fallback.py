"""What a model would refuse because of load, or because it is not ready, a cheaper one answers: for
those who may use it, where it means the same, once, and the answer says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from fake_runtimes import Encoder
from held_calls import INFER, body_of, data
from in_process import Answer, Stand, ask, standing

from deployments.contract.description import ReuseSettings
from deployments.contract.scaling.messages import ModelOutlook
from deployments.gateway.fallback import ModelSelection
from deployments.gateway.queues.dispatcher_driver import QueueRequest, refusal
from deployments.gateway.tenancy.tenants import Tenant
from deployments.preprocess.tokenizer import TextTokenizer
from routers.api.requests import Reason

SMALL = {"runtime": "synthetic", "options": {"base_ms": 0}, "slo": {"latency_ms": 2000}}
FULL = {**SMALL, "batch": {"max_size": 1}, "queue": {"max_rows": 1}}
DEVICE = {**FULL, "fallback": "small"}
TENANTS = {"default": {}, "narrow": {"models": ["device"]}}


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    models = {"device": DEVICE, "small": SMALL}
    async with standing(models, tmp_path, tenants=TENANTS) as stand:
        yield stand


async def post(
    stand: Stand, value: int = 7, path: str = INFER, headers: Any = (), body: bytes = b""
) -> Answer:
    return await ask(stand.app, "POST", path, headers, body or body_of([value]))


async def fill(stand: Stand, model: str = "device") -> list[asyncio.Task[Answer]]:
    """Both slots and the one place in the queue are taken."""
    channel = stand.channels[model]
    channel.hold()
    path, calls = f"/v2/models/{model}/infer", []
    for count in (1, 2):
        calls.append(asyncio.create_task(post(stand, 100 + count, path)))
        await channel.sent(count)
    calls.append(asyncio.create_task(post(stand, 103, path)))
    await stand.waiting(model, 1)
    return calls


async def drained(stand: Stand, *held: list[asyncio.Task[Answer]]) -> None:
    for channel in stand.channels.values():
        channel.let_go()
    for calls in held:
        assert all(answer.status == 200 for answer in await asyncio.gather(*calls))


def served_by(answer: Answer) -> bytes | None:
    assert answer.status == 200, answer.body
    return answer.header(b"x-served-by")


async def test_a_full_queues_overflow_is_answered_by_the_cheaper_model(stand: Stand) -> None:
    held = await fill(stand)
    answer = await post(stand)
    assert (served_by(answer), data(answer)) == (b"small", [7])
    assert json.loads(answer.body)["model_name"] == "small"
    assert len(stand.channels["small"].calls) == 1
    await drained(stand, held)


async def test_while_there_is_room_the_asked_model_answers(stand: Stand) -> None:
    answer = await post(stand)
    assert served_by(answer) is None
    assert json.loads(answer.body)["model_name"] == "device"
    assert not stand.channels["small"].calls


async def test_it_is_counted_for_the_model_that_was_asked(stand: Stand) -> None:
    held = await fill(stand)
    await post(stand)
    lines = (await ask(stand.app, "GET", "/metrics")).body.decode().splitlines()
    one = 'headrace_fallbacks_total{fallback="small",gateway="gateway-0",model="device"} 1.0'
    assert one in lines
    arrivals = [line for line in lines if line.startswith("headrace_arrivals_total")]
    assert len(arrivals) == 1
    assert 'model="device"' in arrivals[0]
    await drained(stand, held)


async def test_openais_answer_names_the_model_that_ran(tmp_path: Path) -> None:
    embed = {**DEVICE, "task": "embed"}
    models = {"device": embed, "small": {**SMALL, "task": "embed"}}
    fakes = {"device": Encoder(), "small": Encoder()}
    async with standing(models, tmp_path, runtimes=fakes) as stand:
        stand.models._live.pop("device")
        stand.run_replicas("device", [])
        answer = await post(
            stand, path="/v1/embeddings", body=b'{"model": "device", "input": [1, 2]}'
        )
        assert served_by(answer) == b"small"
        assert json.loads(answer.body)["model"] == "small"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (INFER, [(b"x-tenant", b"narrow")]),
        ("/v2/models/device/versions/{version}/infer", []),
    ],
)
async def test_without_leave_or_with_a_version_the_refusal_stands(
    stand: Stand, path: str, headers: list[tuple[bytes, bytes]]
) -> None:
    held = await fill(stand)
    version = stand.models.find("device").description.version
    answer = await post(stand, path=path.format(version=version), headers=headers)
    assert answer.status == 503
    assert answer.header(b"retry-after") is not None
    assert not stand.channels["small"].calls
    await drained(stand, held)


@pytest.mark.parametrize("reason", list(Reason))
async def test_only_load_and_readiness_are_reasons_to_go_elsewhere(
    stand: Stand, reason: Reason
) -> None:
    selection = ModelSelection(stand.models, Tenant("t"), "device", None)
    error = refusal(reason, 1.0)
    if reason in (Reason.QUEUE_FULL, Reason.LATE, Reason.CLOSED):
        selection.fall_back(error)
        assert selection.fallback == "small"
        return
    with pytest.raises(type(error)):
        selection.fall_back(error)
    assert selection.fallback == ""


async def test_one_hop_and_no_further(tmp_path: Path) -> None:
    models = {"device": DEVICE, "small": {**FULL, "fallback": "tiny"}, "tiny": SMALL}
    async with standing(models, tmp_path) as stand:
        held = await fill(stand), await fill(stand, "small")
        answer = await post(stand)
        assert answer.status == 503
        assert b"queue" in answer.body
        assert not stand.channels["tiny"].calls
        await drained(stand, *held)


async def test_a_model_that_lost_its_replicas_is_stood_in_for(stand: Stand) -> None:
    stand.models._live.pop("device")
    stand.run_replicas("device", [])
    assert served_by(await post(stand)) == b"small"


async def test_a_model_that_never_was_ready_is_stood_in_for(stand: Stand) -> None:
    stand.models._declared |= {"slow"}
    path = "/v2/models/slow/infer"
    assert (await post(stand, path=path)).status == 503
    stand.models._fallbacks = {"slow": "small"}
    assert served_by(await post(stand, path=path)) == b"small"
    assert (await post(stand, path="/v2/models/unheard/infer")).status == 404


async def test_a_tenant_over_its_own_rate_hears_of_that(tmp_path: Path) -> None:
    models = {"device": DEVICE, "small": SMALL}
    tenants = {"default": {"rate": {"tokens_per_s": 1, "burst_s": 1}}}
    async with standing(models, tmp_path, tenants=tenants) as stand:
        stand.models._live.pop("device")
        stand.run_replicas("device", [])
        assert [(await post(stand)).status for _ in range(2)] == [200, 429]


async def test_where_neither_is_ready_the_asked_model_is_what_is_refused(stand: Stand) -> None:
    for name in ("device", "small"):
        stand.models._live.pop(name)
        stand.run_replicas(name, [])
    answer = await post(stand)
    assert answer.status == 503
    assert b"model device" in answer.body


async def test_an_evicted_request_goes_on_by_its_own_clock(tmp_path: Path) -> None:
    refusing = {**SMALL, "slo": {"latency_ms": 30, "late": "refuse", "timeout_ms": 5000}}
    models = {"device": {**refusing, "batch": {"max_size": 1}, "fallback": "small"}, "small": SMALL}
    async with standing(models, tmp_path) as stand:
        channel = stand.channels["device"]
        channel.hold()
        held = [asyncio.create_task(post(stand, 100 + n)) for n in range(2)]
        await channel.sent(2)
        stand.channels["small"].hold()
        late = asyncio.create_task(post(stand))
        await stand.channels["small"].sent(1)
        _, call = stand.channels["small"].calls[0]
        assert 4.0 < call.budget_s < 4.98
        stand.channels["small"].let_go()
        answer = await late
        assert served_by(answer) == b"small"
        assert float(answer.header(b"x-queue-wait-ms") or 0) >= 20
        await drained(stand, held)


async def test_what_the_cheaper_model_does_not_take_is_refused_as_the_asked_one_did(
    tmp_path: Path,
) -> None:
    short = {**SMALL, "lengths": {"max": 1}}
    models = {"device": DEVICE, "small": short}
    async with standing(models, tmp_path) as stand:
        held = await fill(stand)
        tensor = {"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}
        long = json.dumps({"inputs": [tensor]}).encode()
        assert (await post(stand, body=long)).status == 503
        assert served_by(await post(stand)) == b"small"
        await drained(stand, held)


async def test_other_outputs_are_no_stand_in(tmp_path: Path) -> None:
    models = {"device": DEVICE, "small": SMALL}
    async with standing(models, tmp_path, runtimes={"small": Encoder()}) as stand:
        held = await fill(stand)
        assert (await post(stand)).status == 503
        await drained(stand, held)


async def test_token_ids_go_to_no_other_vocabulary(stand: Stand) -> None:
    stand.swap("small", tokenizer_digest="another")
    held = await fill(stand)
    assert (await post(stand)).status == 503
    await drained(stand, held)


async def test_a_cheaper_model_answers_from_its_own_cache(tmp_path: Path) -> None:
    models = {"device": DEVICE, "small": {**SMALL, "cache": {"max_bytes": 100_000}}}
    async with standing(models, tmp_path) as stand:
        held = await fill(stand)
        answers = [await post(stand) for _ in range(2)]
        assert [served_by(answer) for answer in answers] == [b"small"] * 2
        assert [answer.header(b"x-cache") for answer in answers] == [b"miss", b"hit"]
        await drained(stand, held)


async def test_what_the_asked_model_has_kept_goes_before_a_cheaper_answer(tmp_path: Path) -> None:
    models = {"device": {**DEVICE, "cache": {"max_bytes": 100_000}}, "small": SMALL}
    async with standing(models, tmp_path) as stand:
        await post(stand)
        held = await fill_after(stand, 1)
        known, unknown = await post(stand), await post(stand, 8)
        assert (served_by(known), known.header(b"x-cache")) == (None, b"hit")
        assert (served_by(unknown), unknown.header(b"x-cache")) == (b"small", None)
        await drained(stand, held)


async def fill_after(stand: Stand, calls: int) -> list[asyncio.Task[Answer]]:
    channel = stand.channels["device"]
    channel.hold()
    held = []
    for count in (1, 2):
        held.append(asyncio.create_task(post(stand, 100 + count)))
        await channel.sent(calls + count)
    held.append(asyncio.create_task(post(stand, 103)))
    await stand.waiting("device", 1)
    return held


async def test_a_failure_is_not_tried_on_the_cheaper_model(tmp_path: Path) -> None:
    models = {"device": {**DEVICE, "retry": False}, "small": SMALL}
    async with standing(models, tmp_path) as stand:
        stand.channels["device"].dead.add("device-0")
        assert (await post(stand)).status == 503
        assert not stand.channels["small"].calls
        stand.channels["device"].dead.clear()


async def test_tokens_are_counted_once_at_a_tenants_rate(tmp_path: Path) -> None:
    models = {"device": {**DEVICE, "queue": {"max_rows": 1}}, "small": SMALL}
    tenants = {"default": {}, "rated": {"rate": {"tokens_per_s": 1, "burst_s": 1}}}
    async with standing(models, tmp_path, tenants=tenants) as stand:
        held = await fill(stand)
        # As if there had been room by the headers, which was gone at the queue.
        queue = stand.models.served["device"].queue
        queue.check_room = lambda demand: None  # type: ignore[method-assign]
        answer = await post(stand, headers=[(b"x-tenant", b"rated")])
        assert served_by(answer) == b"small"
        await drained(stand, held)


async def test_a_way_holds_on_to_the_asked_models_promise(stand: Stand) -> None:
    selection = ModelSelection(stand.models, Tenant("t"), "device", None)
    asked = stand.models.find("device").description.scheduling
    assert selection.scheduling is asked
    held = await fill(stand)
    selection.check_room(QueueRequest("t", 1, 1.0, 1.0))
    assert selection.fallback == "small"
    assert selection.scheduling is asked
    await drained(stand, held)


async def test_a_fallback_that_is_gone_is_none(stand: Stand) -> None:
    stand.swap("device", reuse=ReuseSettings(fallback="gone"))
    stand.models._live.pop("device")
    stand.run_replicas("device", [])
    assert (await post(stand)).status == 503


async def test_texts_are_tokenised_by_the_model_that_runs(tmp_path: Path) -> None:
    embed = {"task": "embed"}
    models = {"device": {**DEVICE, **embed}, "small": {**SMALL, **embed}}
    fakes = {"device": Encoder(), "small": Encoder()}
    async with standing(models, tmp_path, runtimes=fakes) as stand:
        for name, ids in (("device", {"[UNK]": 0, "cat": 5}), ("small", {"[UNK]": 0, "cat": 9})):
            stand.swap(name, tokenizer_digest=name)
            stand.models.served[name].tokenizer = TextTokenizer(_words(ids), 16, False, 0)
        stand.models._live.pop("device")
        stand.run_replicas("device", [])
        path = "/v1/embeddings"
        answer = await post(stand, path=path, body=b'{"model": "device", "input": "cat"}')
        assert served_by(answer) == b"small"
        assert json.loads(answer.body)["data"][0]["embedding"] == [9, 0]
        ids = await post(stand, path=path, body=b'{"model": "device", "input": [5]}')
        assert ids.status == 503


def _words(ids: dict[str, int]) -> bytes:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return tokenizer.to_str().encode()


# ---- what was asked for, and of whom -------------------------------------------------------------


def offered(stand: Stand, model: str) -> int:
    """Requests."""
    return stand.models.served[model].queue.snapshot().offered.requests


async def test_what_falls_back_is_demand_for_the_model_that_was_asked(stand: Stand) -> None:
    held = await fill(stand)
    assert served_by(await post(stand)) == b"small"
    assert offered(stand, "device") == 4
    assert offered(stand, "small") == 0
    await drained(stand, held)


async def test_who_is_refused_by_its_headers_was_asked_for_all_the_same(stand: Stand) -> None:
    held = await fill(stand)
    answer = await post(stand, headers=[(b"x-tenant", b"narrow")])
    assert answer.status == 503
    core = stand.models.served["device"].queue.snapshot()
    assert core.offered.requests == 4
    assert dict(core.offered.refused) == {"queue_full": 1}
    await drained(stand, held)


async def test_a_model_that_nobody_can_reach_is_asked_for_all_the_same(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.gateway.models.catalogue.HOLD_S", 0.0)
    stand.run_replicas("device", [])
    assert served_by(await post(stand)) == b"small"
    assert offered(stand, "device") == 1
    assert offered(stand, "small") == 0
    assert stand.models.served["device"].queue.unserved


async def test_a_sleeping_models_requests_that_cannot_wait_go_to_the_cheaper_one(
    stand: Stand,
) -> None:
    stand.run_replicas("device", [])
    asleep = ModelOutlook(may_sleep=True, wakes=True, ready_in_s=12.0)
    stand.models.take_outlooks({"device": asleep}, 0.0)
    headers = [(b"x-timeout-ms", b"900")]
    assert served_by(await post(stand, headers=headers)) == b"small"
    alone = await post(stand, headers=[*headers, (b"x-tenant", b"narrow")])
    assert alone.status == 503
    assert alone.header(b"retry-after") == b"12"
    assert offered(stand, "device") == 2
    waiting = asyncio.create_task(post(stand, headers=[(b"x-timeout-ms", b"60000")]))
    await stand.waiting("device", 1)
    stand.run_replicas("device", ["device-0"])
    assert served_by(await waiting) is None
