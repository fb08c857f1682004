"""Prompts of a model under rollout: until an answer has begun, the live version takes what the
canary does not answer; afterwards nobody does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from generating import CHAT, Client, Played, add, chat, streamed
from in_process import Stand, standing
from rolling_out import counts, seen

from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription

Describe = Callable[..., ModelDescription]
DONE = b"data: [DONE]\n\n"
ONE = b"data: one\n\n"


class Both:
    """`live`, `canary`: their engines."""

    def __init__(self, stand: Stand, description: Describe) -> None:
        self.stand = stand
        self.live = add(stand, description, version="1")
        self.canary = add(stand, description, "chat@canary", version="2")
        stand.route("chat")

    async def whole(self, engines: Played, client: Client) -> None:
        """These engines answer it."""
        asked = await engines.until_begun(len(engines.begun) or 1)
        engines.say(asked.lease_id, ONE, tokens=(10, 0, 1))
        engines.say(asked.lease_id, DONE, tokens=(10, 0, 2), end=StreamEnd.DONE)
        assert await client.end() == ONE + DONE
        assert client.status == 200


@pytest.fixture
async def both(tmp_path: Path, description: Describe) -> AsyncIterator[Both]:
    async with standing({}, tmp_path) as stand:
        yield Both(stand, description)


async def test_the_canary_streams_under_the_models_name(both: Both) -> None:
    client = Client(both.stand, CHAT, streamed())
    asked = await both.canary.until_begun(1)
    assert json.loads(asked.call.body)["model"] == "chat"
    await both.whole(both.canary, client)
    assert not both.live.begun
    assert counts(both.stand) == ((0, 0), (1, 0))
    (length,) = seen(both.stand).canary.latencies
    assert length == 16  # 2 tokens of text, 8 of a template
    assert seen(both.stand).canary.token_s.total() == 1
    assert both.stand.models.served["chat"].queue.snapshot().offered.requests == 1


async def test_a_canary_that_dies_before_its_first_piece_is_not_noticed(both: Both) -> None:
    client = Client(both.stand, CHAT, streamed())
    await both.canary.until_begun(1)
    both.canary.kill("chat@canary-0")
    await both.live.until_begun(1)
    await both.whole(both.live, client)
    assert counts(both.stand) == ((1, 0), (0, 1))


async def test_a_prompt_that_the_canary_died_with_is_suspect_until_the_live_version_answers_it(
    both: Both,
) -> None:
    client = Client(both.stand, CHAT, streamed())
    await both.canary.until_begun(1)
    both.canary.kill("chat@canary-0")
    await both.live.until_begun(1)
    queue = both.stand.models.served["chat"].streams
    assert queue.crashes
    assert queue.permits._holder is not None
    await both.whole(both.live, client)
    assert not queue.crashes
    assert queue.permits._holder is None


async def test_a_stream_that_has_begun_is_not_begun_again(both: Both) -> None:
    client = Client(both.stand, CHAT, streamed())
    asked = await both.canary.until_begun(1)
    both.canary.say(asked.lease_id, ONE, tokens=(10, 0, 1))
    await client.hears(1)
    both.canary.kill("chat@canary-0")
    last = (await client.end()).removeprefix(ONE)
    assert b"replica_lost" in last
    assert not both.live.begun
    assert counts(both.stand) == ((0, 0), (0, 1))


@pytest.mark.parametrize("status", [400, 500])
async def test_what_the_canarys_engine_refuses_the_live_one_answers(
    both: Both, status: int
) -> None:
    client = Client(both.stand, CHAT, streamed())
    asked = await both.canary.until_begun(1)
    both.canary.say(asked.lease_id, b'{"error": {}}', status=status, end=StreamEnd.DONE)
    await both.live.until_begun(1)
    await both.whole(both.live, client)
    found = seen(both.stand)
    assert counts(both.stand) == ((1, 0), (0, 1))
    assert found.canary.reasons == {"engine_refused": 1}


async def test_what_both_engines_call_bad_counts_for_neither(both: Both) -> None:
    client = Client(both.stand, CHAT, chat())
    said = b'{"error": {"message": "no such tool"}}'
    for engines in (both.canary, both.live):
        asked = await engines.until_begun(1)
        engines.say(asked.lease_id, said, status=422, end=StreamEnd.DONE)
    assert await client.end() == said
    assert client.status == 422
    assert counts(both.stand) == ((0, 0), (0, 0))


async def test_what_must_not_run_twice_may_go_on_where_the_engine_did_not_run_it(
    both: Both,
) -> None:
    once = [(b"x-idempotent", b"false")]
    client = Client(both.stand, CHAT, streamed(), once)
    asked = await both.canary.until_begun(1)
    both.canary.say(asked.lease_id, b"{}", status=404, end=StreamEnd.DONE)
    await both.live.until_begun(1)
    await both.whole(both.live, client)
    second = Client(both.stand, CHAT, streamed(), once)
    await both.canary.until_begun(2)
    both.canary.kill("chat@canary-0")
    await second.end()
    assert second.status == 503
    assert len(both.live.begun) == 1


async def test_prompts_are_never_copied(both: Both) -> None:
    both.stand.route("chat", 0.0, 1.0)
    client = Client(both.stand, CHAT, streamed())
    await both.live.until_begun(1)
    await both.whole(both.live, client)
    assert not both.canary.begun


async def test_who_leaves_counts_for_nobody(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.gateway.http.exchange._WATCH_AFTER_S", 0.0)
    client = Client(both.stand, CHAT, streamed())
    await both.canary.until_begun(1)
    client.leave.set()
    await client.end()
    await both.canary.until_aborted(1)
    assert not both.live.begun
    assert counts(both.stand) == ((0, 0), (0, 0))
