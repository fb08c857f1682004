"""What a tenant's settings and a request's headers mean for its rows, through the whole gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from in_process import Answer, Stand, ask, standing

from routers.api.requests import Request

SYNTHETIC = {"runtime": "synthetic", "options": {"base_ms": 0}, "lengths": {"max": 64}}
INFER = "/v2/models/device/infer"
GOOD = b'{"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}]}'
ACME, OTHER = (b"x-tenant", b"acme"), (b"x-tenant", b"other")


async def queued(stand: Stand, *headers: tuple[bytes, bytes]) -> Request:
    """The request as the core was given it."""
    channel, queue = stand.channels["device"], stand.models.served["device"].queue
    channel.hold()
    asked = asyncio.create_task(ask(stand.app, "POST", INFER, headers, GOOD))
    await channel.sent(len(channel.calls) + 1)
    (pending,) = queue._pending.values()
    channel.let_go()
    assert (await asked).status == 200
    return pending.request


async def test_weight_priority_and_bound_are_the_tenants(tmp_path: Path) -> None:
    acme = {"weight": 3, "priority": "interactive", "max_queue_rows": 7}
    async with standing({"device": SYNTHETIC}, tmp_path, tenants={"acme": acme}) as stand:
        request = await queued(stand, ACME)
        assert (request.tenant, request.weight, request.priority) == ("acme", 3, 0)
        assert request.tenant_rows == 7
        assert (await queued(stand, ACME, (b"x-priority", b"bulk"))).priority == 2


async def test_priorities_are_those_the_gateway_names(tmp_path: Path) -> None:
    gateway = {"priorities": ["gold", "silver", "bronze", "tin"]}
    async with standing({"device": SYNTHETIC}, tmp_path, gateway=gateway) as stand:
        assert (await queued(stand)).priority == 2
        assert (await queued(stand, (b"x-priority", b"tin"))).priority == 3
        page = (await ask(stand.app, "GET", "/metrics")).body.decode()
        assert 'priority="tin"' in page
        assert 'priority="other"' not in page


async def test_a_session_belongs_to_its_tenant(tmp_path: Path) -> None:
    tenants: dict[str, Any] = {"acme": {}, "other": {}}
    async with standing({"device": SYNTHETIC}, tmp_path, tenants=tenants) as stand:
        session = (b"x-session-id", b"chat 1")
        mine, theirs = (
            await queued(stand, ACME, session),
            await queued(stand, (b"x-tenant", b"other"), session),
        )
        again = await queued(stand, ACME, session)
        assert mine.session == again.session != theirs.session
        assert (await queued(stand, ACME)).session == ""


@pytest.mark.parametrize(
    ("model", "header", "retryable"),
    [
        ({}, [], True),
        ({}, [(b"x-idempotent", b"true")], True),
        ({}, [(b"x-idempotent", b"False")], False),
        ({"retry": False}, [(b"x-idempotent", b"true")], False),
    ],
)
async def test_what_is_not_idempotent_runs_once(
    tmp_path: Path, model: dict[str, Any], header: list[tuple[bytes, bytes]], retryable: bool
) -> None:
    async with standing({"device": SYNTHETIC | model}, tmp_path) as stand:
        assert (await queued(stand, *header)).retryable == retryable


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-session-id", b""),
        (b"x-session-id", b"x" * 129),
        (b"x-session-id", b"a\x01"),
        (b"x-session-id", b"\xe4"),
        (b"x-idempotent", b"no"),
        (b"x-idempotent", b""),
    ],
)
async def test_a_header_that_makes_no_sense_is_400_before_the_body_is_read(
    tmp_path: Path, name: bytes, value: bytes
) -> None:
    async with standing({"device": SYNTHETIC}, tmp_path) as stand:
        answer = await ask(stand.app, "POST", INFER, [(name, value)], [None])
        assert answer.status == 400
        assert name in answer.body


@pytest.mark.parametrize("length", [1, 128])
async def test_a_session_may_be_named_by_up_to_128_characters(tmp_path: Path, length: int) -> None:
    async with standing({"device": SYNTHETIC}, tmp_path) as stand:
        assert (await queued(stand, (b"x-session-id", b"~" * length))).session.endswith(
            "~" * length
        )


# ---- rates and bounds of their own ------------------------------------------------------------


def tenant_of_one(**rate: float) -> dict[str, Any]:
    """Nothing more for a hundred seconds once the burst is used up."""
    return {"acme": {"rate": {"burst_s": 100, **rate}}, "other": {}}


async def test_a_request_over_the_tenants_rate_is_429_before_its_body_is_read(
    tmp_path: Path,
) -> None:
    tenants = tenant_of_one(requests_per_s=0.02)
    async with standing({"device": SYNTHETIC}, tmp_path, tenants=tenants) as stand:
        assert (await ask(stand.app, "POST", INFER, [ACME], GOOD)).status == 200
        assert (await ask(stand.app, "POST", INFER, [ACME], GOOD)).status == 200
        answer = await ask(stand.app, "POST", INFER, [ACME], [None])
        assert (answer.status, b"rate.requests_per_s" in answer.body) == (429, True)
        assert answer.header(b"retry-after") == b"50"
        other = await ask(stand.app, "POST", INFER, [(b"x-tenant", b"other")], GOOD)
        assert other.status == 200
        page = (await ask(stand.app, "GET", "/metrics")).body.decode()
        (line,) = [each for each in page.splitlines() if 'reason="request_rate"' in each]
        assert 'tenant="acme"' in line
        assert 'model="device"' in line
        assert 'outcome="over_limit"' in line


async def test_tokens_over_the_tenants_rate_are_429_once_lengths_are_known(tmp_path: Path) -> None:
    tenants = tenant_of_one(tokens_per_s=0.03)
    async with standing({"device": SYNTHETIC}, tmp_path, tenants=tenants) as stand:
        assert (await ask(stand.app, "POST", INFER, [ACME], GOOD)).status == 200
        answer = await ask(stand.app, "POST", INFER, [ACME], GOOD)
        assert (answer.status, b"rate.tokens_per_s" in answer.body) == (429, True)
        assert answer.header(b"retry-after") == b"34"


async def test_a_request_that_is_wrong_costs_nothing_of_the_rate(tmp_path: Path) -> None:
    tenants = tenant_of_one(requests_per_s=0.01)
    async with standing({"device": SYNTHETIC}, tmp_path, tenants=tenants) as stand:
        unknown = await ask(stand.app, "POST", "/v2/models/nope/infer", [ACME], GOOD)
        nonsense = await ask(stand.app, "POST", INFER, [ACME, (b"x-timeout-ms", b"x")], GOOD)
        assert (unknown.status, nonsense.status) == (404, 400)
        assert (await ask(stand.app, "POST", INFER, [ACME], GOOD)).status == 200


async def test_each_gateway_enforces_its_share_of_a_rate(tmp_path: Path) -> None:
    tenants = tenant_of_one(requests_per_s=0.04)
    gateway = {"replicas": 2}
    async with standing({"device": SYNTHETIC}, tmp_path, tenants=tenants, gateway=gateway) as stand:
        answers = [await ask(stand.app, "POST", INFER, [ACME], GOOD) for _ in range(5)]
        assert [answer.status for answer in answers] == [200, 200, 200, 200, 429]  # the burst
        assert answers[-1].header(b"retry-after") == b"50"  # half of the rate


async def one_out_two_waiting(stand: Stand) -> list[asyncio.Task[Answer]]:
    """Requests of one row each, on a replica of one slot."""
    channel, asked = stand.channels["device"], []
    channel.hold()
    for _ in range(3):
        asked.append(asyncio.create_task(ask(stand.app, "POST", INFER, [ACME], GOOD)))
        await channel.sent(1)
    await stand.waiting("device", 2)
    return asked


async def test_what_a_tenant_has_waiting_and_was_served_is_published(tmp_path: Path) -> None:
    tenants: dict[str, Any] = {"acme": {"priority": "bulk"}}
    device = {**SYNTHETIC, "options": {"base_ms": 1}, "replicas": {"slots": 1}}
    async with standing({"device": device}, tmp_path, tenants=tenants) as stand:
        asked = await one_out_two_waiting(stand)
        model = stand.telemetry.snapshot().models["device"]
        assert model.rows_by_tenant == {"acme": 2}
        assert sum(model.rows_by_bucket.values()) == 2
        stand.channels["device"].let_go()
        assert {(await each).status for each in asked} == {200}
        page = (await ask(stand.app, "GET", "/metrics")).body.decode()
        (line,) = [s for s in page.splitlines() if s.startswith("headrace_tenant_served_seconds_t")]
        assert 'tenant="acme"' in line
        assert 'priority="bulk"' in line
        assert float(line.split()[-1]) > 0


async def test_a_tenant_over_its_own_bound_is_429_and_the_others_wait_on(tmp_path: Path) -> None:
    tenants: dict[str, Any] = {"acme": {"max_queue_rows": 2}, "other": {}}
    device = {**SYNTHETIC, "replicas": {"slots": 1}}
    async with standing({"device": device}, tmp_path, tenants=tenants) as stand:
        asked = await one_out_two_waiting(stand)
        # One row runs, two wait: the next is refused, by its headers alone.
        answer = await ask(stand.app, "POST", INFER, [ACME], [None])
        assert (answer.status, b"max_queue_rows" in answer.body) == (429, True)
        assert answer.header(b"retry-after") == b"1"
        other = [(b"x-tenant", b"other")]
        asked.append(asyncio.create_task(ask(stand.app, "POST", INFER, other, GOOD)))
        await stand.waiting("device", 3)
        stand.channels["device"].let_go()
        assert {(await each).status for each in asked} == {200}
        page = (await ask(stand.app, "GET", "/metrics")).body.decode()
        assert sum('reason="tenant_full"' in line for line in page.splitlines()) == 1


@pytest.mark.parametrize(("rows", "status"), [(2, 200), (3, 400)])
async def test_a_request_of_more_rows_than_its_tenant_may_queue_never_fits(
    tmp_path: Path, rows: int, status: int
) -> None:
    tenants: dict[str, Any] = {"acme": {"max_queue_rows": 2}}
    async with standing({"device": SYNTHETIC}, tmp_path, tenants=tenants) as stand:
        body = b'{"instances": [%s]}' % b",".join([b"[1]"] * rows)
        answer = await ask(stand.app, "POST", "/v1/models/device:predict", [ACME], body)
        assert (answer.status, b"max_queue_rows" in answer.body) == (status, status == 400)


async def test_a_full_queue_is_503_for_who_fills_it_and_has_a_place_for_another(
    tmp_path: Path,
) -> None:
    tenants: dict[str, Any] = {"acme": {}, "other": {}}
    device = {**SYNTHETIC, "replicas": {"slots": 1}, "queue": {"max_rows": 2}}
    async with standing({"device": device}, tmp_path, tenants=tenants) as stand:
        asked = await one_out_two_waiting(stand)
        unread = await ask(stand.app, "POST", INFER, [ACME], [None])
        assert (unread.status, unread.header(b"retry-after")) == (503, b"1")
        other = asyncio.create_task(ask(stand.app, "POST", INFER, [OTHER], GOOD))
        evicted = await asked.pop()
        assert (evicted.status, evicted.header(b"retry-after")) == (503, b"1")
        assert "queue is full" in json.loads(evicted.body)["error"]
        unread = await ask(stand.app, "POST", INFER, [OTHER], [None])
        assert unread.status == 503
        asked.append(other)
        stand.channels["device"].let_go()
        assert {(await each).status for each in asked} == {200}
