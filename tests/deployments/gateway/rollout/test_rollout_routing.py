"""Which version answers: the canary its share, and the live one whatever the canary does not; no
caller is failed by a canary, and none sees its name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engines import until
from fake_runtimes import Encoder, Moody, Quotient
from in_process import Stand, ask
from rolling_out import (
    CANARY,
    INFER,
    LIVE,
    body_of,
    content,
    counts,
    post,
    rolling_out,
    seen,
    send,
    version_of,
)

from runtimes.errors import BadRows

PINNED = "/v2/models/m/versions/{}/infer"


def always(fault: Exception) -> Callable[[int], Exception | None]:
    return lambda _: fault


async def test_of_a_thousand_requests_the_canary_gets_exactly_its_share(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        stand.route(LIVE, 0.05)
        versions = [version_of(await post(stand)) for _ in range(1000)]
        assert versions.count("2") == 50
        assert counts(stand) == ((950, 0), (50, 0))


async def test_without_a_route_the_canary_gets_nothing(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        stand.models.routes = {}
        assert [version_of(await post(stand)) for _ in range(20)] == ["1"] * 20
        assert not stand.channels[CANARY].calls
        assert stand.app.rollouts.report() == []


@pytest.mark.parametrize(("version", "ran"), [("1", LIVE), ("2", CANARY)])
async def test_who_asks_for_a_version_gets_it(tmp_path: Path, version: str, ran: str) -> None:
    async with rolling_out(tmp_path) as stand:
        stand.route(LIVE, 0.5)
        for _ in range(20):
            assert version_of(await post(stand, path=PINNED.format(version))) == version
        assert len(stand.channels[ran].calls) == 20
        assert (await post(stand, path=PINNED.format("3"))).status == 404


async def test_the_version_that_was_asked_for_fails_by_itself(tmp_path: Path) -> None:
    async with rolling_out(tmp_path, mood=always(RuntimeError("no"))) as stand:
        answer = await post(stand, path=PINNED.format("2"))
        assert answer.status == 503
        assert b"canary" not in answer.body
        assert counts(stand) == ((0, 0), (0, 0))


async def test_a_version_that_gets_no_requests_yet_cannot_be_asked_for(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        stand.route(LIVE, 0.0, 1.0)
        assert (await post(stand, path=PINNED.format("2"))).status == 404
        assert not stand.channels[CANARY].calls


async def test_of_two_equal_versions_the_live_one_is_asked(tmp_path: Path) -> None:
    async with rolling_out(tmp_path, canary={"version": "1"}) as stand:
        assert version_of(await post(stand, path=PINNED.format("1"))) == "1"
        assert not stand.channels[CANARY].calls


# ---- what the canary does not answer ---------------------------------------------------------


async def lose(stand: Stand) -> None:
    stand.channels[CANARY].dead.add(f"{CANARY}-0")


async def unreached(stand: Stand) -> None:
    stand.channels[CANARY].lose(f"{CANARY}-0")


async def fault(stand: Stand) -> None:
    stand.channels[CANARY].script = ["it broke"]


async def fill(stand: Stand) -> None:
    """Its slots and its queue, by others."""
    channel = stand.channels[CANARY]
    channel.hold()
    queue = stand.models.queued[CANARY].queue
    for count in range(3):
        task = send(stand, count, headers=[(b"x-tenant", b"filler")])
        await until(lambda least=count: queue.inflight > least)
        HELD.append(task)


HELD: list[asyncio.Task[Any]] = []
TIGHT = {"batch": {"max_size": 1}, "queue": {"max_rows": 1}}


@pytest.mark.parametrize(
    ("canary", "mood", "before", "reason"),
    [
        ({}, always(RuntimeError("no")), None, "inference_failed"),
        ({}, always(BadRows("bad")), None, "invalid_request"),
        ({}, content, lose, "lost"),
        ({}, content, fault, "lost"),
        (TIGHT, content, fill, "queue_full"),
    ],
)
async def test_the_live_version_answers_what_the_canary_does_not(
    tmp_path: Path, canary: Any, mood: Any, before: Any, reason: str
) -> None:
    tenants = {"default": {}, "filler": {}}
    async with rolling_out(tmp_path, canary=canary, mood=mood, tenants=tenants) as stand:
        if before is not None:
            await before(stand)
        assert version_of(await post(stand)) == "1"
        found = seen(stand)
        assert (found.canary.answered, found.canary.failed) == (0, 1)
        assert found.canary.reasons == {reason: 1}
        assert (found.live.answered, found.live.failed) == (1, 0)
        stand.channels[CANARY].let_go()
        for held in HELD:
            assert (await held).status == 200
        HELD.clear()


async def test_numbers_that_are_none_are_answered_by_the_live_version(tmp_path: Path) -> None:
    fakes = {LIVE: Moody(content), CANARY: Quotient()}
    async with rolling_out(tmp_path, runtimes=fakes) as stand:
        assert version_of(await post(stand, 0)) == "1"
        assert seen(stand).canary.reasons == {"output_not_finite": 1}


async def test_a_canary_without_a_replica_is_asked_nothing(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        await unreached(stand)
        assert version_of(await post(stand)) == "1"
        assert counts(stand) == ((1, 0), (0, 0))
        assert seen(stand).reached == 0


async def test_what_the_canary_takes_too_long_for_is_answered_in_time(tmp_path: Path) -> None:
    """The live version's SLO is kept back of the time that the caller gives."""
    soon = {"slo": {"latency_ms": 500}}
    async with rolling_out(tmp_path, live=soon, canary=soon) as stand:
        stand.channels[CANARY].hold()
        assert version_of(await post(stand, headers=[(b"x-timeout-ms", b"1500")])) == "1"
        assert seen(stand).canary.reasons == {"expired": 1}
        stand.channels[CANARY].let_go()


@pytest.mark.parametrize(
    ("canary", "headers"),
    [({}, [(b"x-idempotent", b"false")]), ({"retry": False}, [])],
)
async def test_what_must_not_run_twice_does_not(tmp_path: Path, canary: Any, headers: Any) -> None:
    async with rolling_out(tmp_path, canary=canary, mood=always(RuntimeError("no"))) as stand:
        answer = await post(stand, headers=headers)
        assert answer.status == 503
        assert not stand.channels[LIVE].calls
        assert counts(stand) == ((0, 0), (0, 1))


async def test_what_has_not_run_may_be_answered_by_the_live_version(tmp_path: Path) -> None:
    once = [(b"x-idempotent", b"false")]
    async with rolling_out(tmp_path, canary={"queue": {"max_rows": 1}}) as stand:
        assert version_of(await post(stand, 1, 2, headers=once)) == "1"
        assert not stand.channels[CANARY].calls


async def test_a_caller_who_leaves_counts_for_nobody(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        stand.channels[CANARY].hold()
        leave = asyncio.Event()
        call = send(stand, leave=leave)
        await stand.channels[CANARY].sent(1)
        leave.set()
        await call
        stand.channels[CANARY].let_go()
        assert not stand.channels[LIVE].calls
        assert counts(stand) == ((0, 0), (0, 0))


async def test_a_tenants_own_rate_is_not_the_canarys_fault(tmp_path: Path) -> None:
    tenants = {"default": {"rate": {"tokens_per_s": 1, "burst_s": 1}}}
    async with rolling_out(tmp_path, tenants=tenants) as stand:
        answers = [await post(stand) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 429, 429]
        assert len(stand.channels[LIVE].calls) == 0
        assert counts(stand) == ((0, 0), (1, 0))


async def test_what_both_versions_refuse_counts_for_neither(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        wrong = await ask(stand.app, "POST", INFER, (), body_of(1, name="unknown"))
        broken = await ask(stand.app, "POST", INFER, (), b'{"inputs": [')
        assert (wrong.status, broken.status) == (400, 400)
        assert b"canary" not in wrong.body + broken.body
        assert counts(stand) == ((0, 0), (0, 0))


async def test_a_body_may_be_as_large_as_either_version_takes(tmp_path: Path) -> None:
    async with rolling_out(tmp_path, live={"queue": {"max_rows": 1}}) as stand:
        large = body_of(1, 2) + b" " * 420_000  # one row of the live version's has no 400 KB
        assert version_of(await ask(stand.app, "POST", INFER, (), large)) == "2"
        stand.route(LIVE, 0.0, step=1)
        assert (await ask(stand.app, "POST", INFER, (), large)).status == 413


async def test_after_the_live_version_its_own_fallback_answers(tmp_path: Path) -> None:
    """As if there were no canary."""
    async with rolling_out(tmp_path, mood=always(RuntimeError("no"))) as stand:
        stand.run_replicas(LIVE, [])
        stand.models._live.pop(LIVE)
        answer = await post(stand)
        assert answer.status == 503
        assert b"has no running replica" in answer.body
        assert counts(stand) == ((0, 1), (0, 1))


async def test_a_canary_that_is_removed_leaves_its_queue_to_the_live_version(
    tmp_path: Path,
) -> None:
    async with rolling_out(tmp_path, canary={"batch": {"max_size": 1}}) as stand:
        channel = stand.channels[CANARY]
        channel.hold()
        calls = [send(stand, value) for value in range(40)]
        queue = stand.models.queued[CANARY].queue
        await until(lambda: queue.inflight == 40)
        stand.remove(CANARY)
        channel.let_go()
        answers = await asyncio.gather(*calls)
        versions = [version_of(answer) for answer in answers]
        assert set(versions) <= {"1", "2"}
        assert versions.count("1") >= 38  # what ran there goes on to its end
        data = [json.loads(answer.body)["outputs"][0]["data"] for answer in answers]
        assert data == [[value] for value in range(40)]


async def test_a_canary_that_dies_leaves_its_queue_to_the_live_version(tmp_path: Path) -> None:
    async with rolling_out(tmp_path, canary={"batch": {"max_size": 1}}) as stand:
        channel = stand.channels[CANARY]
        channel.hold()
        calls = [send(stand, value) for value in range(40)]
        queue = stand.models.queued[CANARY].queue
        await until(lambda: queue.inflight == 40)
        channel.lose(f"{CANARY}-0")
        answers = await asyncio.gather(*calls)
        assert [version_of(answer) for answer in answers] == ["1"] * 40
        stand.run_replicas(CANARY, [f"{CANARY}-0"])  # it is back
        channel.let_go()
        assert version_of(await post(stand)) == "2"


# ---- nobody sees it ----------------------------------------------------------------------------


async def test_no_public_route_shows_or_takes_a_canary(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        for path in ("/v1/models", "/openapi.json", "/v2/health/ready", "/readyz", "/v2"):
            answer = await ask(stand.app, "GET", path)
            assert answer.status == 200
            assert b"canary" not in answer.body
        index = await ask(stand.app, "POST", "/v2/repository/index")
        assert [each["name"] for each in json.loads(index.body)] == [LIVE]
        for name in ("m@canary", "m%40canary"):
            for method, path in (
                ("GET", f"/v2/models/{name}"),
                ("GET", f"/v2/models/{name}/ready"),
                ("GET", f"/v1/models/{name}"),
                ("POST", f"/v2/models/{name}/infer"),
                ("POST", f"/v2/models/{name}/versions/2/infer"),
                ("POST", f"/v1/models/{name}:predict"),
            ):
                answer = await ask(stand.app, method, path, (), body_of(1))
                assert answer.status == 404, path
        for path, field in (("/v1/embeddings", "input"), ("/v1/completions", "prompt")):
            named = json.dumps({"model": "m@canary", field: [1]}).encode()
            assert (await ask(stand.app, "POST", path, (), named)).status == 404
        assert not stand.channels[CANARY].calls


async def test_metrics_name_it_apart_from_the_model(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        await post(stand)
        page = (await ask(stand.app, "GET", "/metrics")).body.decode()
        arrivals = [line for line in page.splitlines() if line.startswith("headrace_arrivals_")]
        assert 'model="m"' in " ".join(arrivals)
        assert "canary" not in " ".join(arrivals)
        assert 'model="m@canary"' in page


async def test_a_gateway_says_what_it_holds_for_a_canary_until_it_is_answered(
    tmp_path: Path,
) -> None:
    async with rolling_out(tmp_path) as stand:
        stand.channels[CANARY].hold()
        asked = asyncio.create_task(post(stand))
        await stand.channels[CANARY].sent(1)
        said = stand.telemetry.snapshot().models
        assert (said[CANARY].leases, said[LIVE].leases) == (1, 0)
        stand.channels[CANARY].let_go()
        assert version_of(await asked) == "2"
        assert stand.telemetry.snapshot().models[CANARY].leases == 0


async def test_openais_answers_name_the_model(tmp_path: Path) -> None:
    embed = {"task": "embed"}
    fakes = {LIVE: Encoder(), CANARY: Encoder()}
    async with rolling_out(tmp_path, live=embed, canary=embed, runtimes=fakes) as stand:
        body = b'{"model": "m", "input": [1, 2]}'
        answer = await ask(stand.app, "POST", "/v1/embeddings", (), body)
        assert answer.status == 200
        assert json.loads(answer.body)["model"] == LIVE
        assert len(stand.channels[CANARY].calls) == 1


async def test_a_tenants_list_of_models_is_asked_for_the_models_own_name(tmp_path: Path) -> None:
    tenants = {"default": {"models": ["m"]}, "other": {"models": ["m@canary"]}}
    async with rolling_out(tmp_path, tenants=tenants) as stand:
        assert version_of(await post(stand)) == "2"
        assert (await post(stand, headers=[(b"x-tenant", b"other")])).status == 404


# ---- reuse, demand -----------------------------------------------------------------------------


async def test_kept_answers_are_of_the_version_that_is_asked(tmp_path: Path) -> None:
    keeps = {"cache": {"max_bytes": 100_000}, "coalesce": True}
    async with rolling_out(tmp_path, live=keeps, canary=keeps) as stand:
        stand.route(LIVE, 0.5)
        versions = [version_of(await post(stand)) for _ in range(40)]
        assert versions.count("2") == 20
        assert [len(stand.channels[name].calls) for name in (LIVE, CANARY)] == [1, 1]
        found = seen(stand)
        assert (found.live.answered, found.canary.answered) == (20, 20)
        for version in (found.live, found.canary):
            assert sum(sum(each.values()) for each in version.latencies.values()) == 1


async def test_what_the_canary_answers_is_demand_for_the_live_version(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        core = stand.models.served[LIVE].queue
        await post(stand)
        assert core.snapshot().offered.requests == 1
        assert core.snapshot().offered.refused == ()


async def test_what_falls_back_is_demand_once(tmp_path: Path) -> None:
    async with rolling_out(tmp_path, mood=always(RuntimeError("no"))) as stand:
        await post(stand)
        assert stand.models.served[LIVE].queue.snapshot().offered.requests == 1


async def test_whatever_a_canary_does_every_request_has_one_answer(tmp_path: Path) -> None:
    """Of 300 at once, while its rows fail, its replicas go one by one, and then it is removed."""

    def mood(value: int) -> Exception | None:
        faults: dict[int, Exception] = {0: RuntimeError("no"), 1: BadRows("bad")}
        return faults.get(value % 5)

    few = {"batch": {"max_size": 4}}
    async with rolling_out(tmp_path, canary=few, mood=mood, replicas=2) as stand:
        stand.route(LIVE, 0.5, 0.5)
        calls = [send(stand, value) for value in range(300)]
        await stand.channels[CANARY].sent(3)
        stand.channels[CANARY].lose(f"{CANARY}-0")
        await stand.channels[CANARY].sent(5)
        stand.channels[CANARY].lose(f"{CANARY}-1")
        stand.remove(CANARY)
        answers = await asyncio.gather(*calls)
        assert [version_of(answer) in ("1", "2") for answer in answers] == [True] * 300
        data = [json.loads(answer.body)["outputs"][0]["data"] for answer in answers]
        assert data == [[value] for value in range(300)]  # an app that answers twice fails `ask`
        (live, live_failed), (canary, canary_failed) = counts(stand)
        assert (live_failed, live + canary) == (0, 300)
        assert canary + canary_failed == 150
