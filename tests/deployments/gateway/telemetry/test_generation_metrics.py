"""What chats and completions leave on the metrics page, in the access log and in `status`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from fake_engines import until
from generating import CHAT, Client, Played, add, chat, streamed
from in_process import Stand, ask, standing

from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription
from deployments.gateway.telemetry.levels import TokenRates
from deployments.gateway.tenancy.rates import Rates
from deployments.process.logs import fields_of
from runtimes.types import EngineLoad

Describe = Callable[..., ModelDescription]
DONE = b"data: [DONE]\n\n"


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing({}, tmp_path, tenants={"default": {}}) as stand:
        yield stand


async def values(stand: Stand) -> dict[str, float]:
    """Sums of each metric over its labels."""
    sums: dict[str, float] = {}
    for line in (await ask(stand.app, "GET", "/metrics")).body.decode().splitlines():
        if not line.startswith("#"):
            name, _, value = line.partition("{")[0], None, line.rpartition(" ")[2]
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


async def streams_once(stand: Stand, engines: Played, pause_s: float = 0.0) -> None:
    count = len(engines.begun) + 1
    client = Client(stand, CHAT, streamed())
    asked = await engines.until_begun(count)
    engines.say(asked.lease_id, b"data: a\n\n", tokens=(10, 4, 1))
    await client.hears(1)
    await asyncio.sleep(pause_s)
    engines.say(asked.lease_id, DONE, tokens=(10, 4, 3), end=StreamEnd.DONE)
    await client.end()


async def test_a_stream_is_counted_by_its_tokens_and_timed_by_its_first_and_further_ones(
    stand: Stand, description: Describe
) -> None:
    await streams_once(stand, add(stand, description))
    seen = await values(stand)
    assert seen["headrace_input_tokens_total"] == 10
    assert seen["headrace_cached_tokens_total"] == 4
    assert seen["headrace_output_tokens_total"] == 3
    assert seen["headrace_time_to_first_token_seconds_count"] == 1
    assert seen["headrace_time_per_output_token_seconds_count"] == 1
    assert seen["headrace_slo_kept_total"] == 1


async def test_a_promise_is_kept_only_if_both_are(stand: Stand, description: Describe) -> None:
    engines = add(stand, description, slo={"ttft_ms": 5000, "tpot_ms": 1})
    await streams_once(stand, engines, pause_s=0.01)
    seen = await values(stand)
    assert seen["headrace_output_tokens_total"] == 3
    assert seen["headrace_slo_kept_total"] == 0


async def test_an_answer_that_came_whole_is_no_sample_of_times_to_tokens(
    stand: Stand, description: Describe
) -> None:
    engines = add(stand, description)
    client = Client(stand, CHAT, chat())
    asked = await engines.until_begun(1)
    engines.say(asked.lease_id, b"{}", tokens=(10, 0, 5), end=StreamEnd.DONE)
    await client.end()
    seen = await values(stand)
    assert seen["headrace_output_tokens_total"] == 5
    assert seen["headrace_slo_kept_total"] == 1
    assert "headrace_time_to_first_token_seconds_count" not in seen


async def test_what_the_engine_refuses_counts_no_tokens(
    stand: Stand, description: Describe
) -> None:
    engines = add(stand, description)
    client = Client(stand, CHAT, chat())
    asked = await engines.until_begun(1)
    engines.say(asked.lease_id, b"{}", status=400, tokens=(10, 0, 0), end=StreamEnd.DONE)
    await client.end()
    lines = (await ask(stand.app, "GET", "/metrics")).body.decode().splitlines()
    assert any('outcome="bad_request"' in x and 'reason="engine_refused"' in x for x in lines)
    assert "headrace_input_tokens_total" not in await values(stand)


async def test_an_engines_own_account_is_passed_on(stand: Stand, description: Describe) -> None:
    engines = add(stand, description)
    engines.load = EngineLoad(3, 2, 0.5, 7, 100, 90, 1000, 40, 30)
    await streams_once(stand, engines)
    seen = await values(stand)
    found = {name.removeprefix("headrace_replica_"): value for name, value in seen.items()}
    assert (found["running_sequences"], found["waiting_sequences"]) == (3, 2)
    assert (found["cache_used_ratio"], found["preemptions_total"]) == (0.5, 7)
    assert (found["prefix_queries_total"], found["prefix_hits_total"]) == (100, 90)
    assert found["engine_steps_total"] == 1000
    assert (found["draft_tokens_total"], found["accepted_draft_tokens_total"]) == (40, 30)
    status = stand.telemetry.snapshot().models["chat"]
    assert status.engines == {"chat-0": [3, 2, 0.5]}


async def test_a_cancelled_stream_is_counted_as_such(
    stand: Stand, description: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.gateway.http.exchange._WATCH_AFTER_S", 0.0)
    engines = add(stand, description)
    client = Client(stand, CHAT, streamed())
    asked = await engines.until_begun(1)
    engines.say(asked.lease_id, b"data: a\n\n", tokens=(10, 0, 1))
    await client.hears(1)
    client.leave.set()
    await client.end()
    await until(lambda: not engines.running)
    for _ in range(8):  # the last piece is on its way to the queue
        await asyncio.sleep(0)
    lines = (await ask(stand.app, "GET", "/metrics")).body.decode().splitlines()
    assert any('protocol="chat"' in x and 'outcome="cancelled"' in x for x in lines)
    assert any("batches_total{" in x and 'end="dropped"' in x and x.endswith(" 1.0") for x in lines)
    assert (await values(stand))["headrace_slo_kept_total"] == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_the_tokens_of_an_answer_that_its_caller_left_are_counted_and_charged(
    stand: Stand, description: Describe, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Those too that its engine wrote before it heard of that; its times are no samples."""
    monkeypatch.setattr("deployments.gateway.http.exchange._WATCH_AFTER_S", 0.0)
    spent: list[int] = []
    monkeypatch.setattr(Rates, "spend", lambda self, tenant, tokens: spent.append(tokens))
    monkeypatch.setattr(Rates, "reconcile", lambda self, tenant, tokens: None)
    engines = add(stand, description)
    engines.deaf.add("chat-0")
    client = Client(stand, CHAT, chat(stream=stream))
    asked = await engines.until_begun(1)
    engines.say(asked.lease_id, b"data: a\n\n" if stream else b"", tokens=(10, 4, 1))
    engines.say(asked.lease_id, tokens=(10, 4, 3))
    for _ in range(8):
        await asyncio.sleep(0)
    client.leave.set()
    await client.end()
    seen = await values(stand)
    assert (seen["headrace_input_tokens_total"], seen["headrace_output_tokens_total"]) == (10, 3)
    engines.say(asked.lease_id, tokens=(10, 4, 5), end=StreamEnd.ABORTED)
    await until(lambda: not engines.running)
    for _ in range(8):
        await asyncio.sleep(0)
    seen = await values(stand)
    assert (seen["headrace_input_tokens_total"], seen["headrace_output_tokens_total"]) == (10, 5)
    assert seen["headrace_cached_tokens_total"] == 4
    assert "headrace_time_to_first_token_seconds_count" not in seen
    assert (spent[-1], sum(spent)) == (2, 5)


async def test_the_tokens_of_an_answer_that_its_replica_broke_off_are_counted(
    stand: Stand, description: Describe
) -> None:
    engines = add(stand, description)
    client = Client(stand, CHAT, streamed())
    asked = await engines.until_begun(1)
    engines.say(asked.lease_id, b"data: a\n\n", tokens=(10, 0, 2))
    await client.hears(1)
    engines.kill("chat-0")
    await client.end()
    assert (await values(stand))["headrace_output_tokens_total"] == 2


async def test_an_answer_that_was_cut_off_has_its_line_with_its_tokens(
    stand: Stand, description: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[logging.LogRecord] = []
    access = logging.getLogger("headrace.access")
    monkeypatch.setattr(access, "handle", lines.append)
    engines = add(stand, description)
    client = Client(stand, CHAT, streamed())
    asked = await engines.until_begun(1)
    engines.say(asked.lease_id, b"data: a\n\n", tokens=(10, 0, 2))
    await client.hears(1)
    engines.kill("chat-0")
    await client.end()
    said = fields_of(lines[0])
    assert (said["status"], said["reason"]) == (503, "replica_lost")
    assert (said["input_tokens"], said["output_tokens"]) == (10, 2)


def test_tokens_a_second_are_between_one_look_and_the_next() -> None:
    pace = TokenRates()
    assert pace.of("m", 100, 10.0) == 0.0
    assert pace.of("m", 300, 12.0) == 100.0
    assert pace.of("m", 300, 13.0) == 0.0
    assert pace.of("n", 5, 13.0) == 0.0
