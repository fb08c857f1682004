"""Gateways end while they work on requests: who sends such a request again is answered, or refused
once a second gateway has ended with that request alone."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from generating import CHAT, add, streamed
from held_calls import INFER, SYNTHETIC, body_of
from in_process import Answer, Stand, ask, standing

from deployments.contract import errors
from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription
from deployments.contract.registry import GatewaySnapshot
from deployments.control.registry.registry import Registry
from deployments.gateway import services
from deployments.gateway.http.codecs import InferCodec
from deployments.gateway.models.crash_exchange import CrashExchange
from deployments.gateway.queues import suspected_requests
from deployments.gateway.queues.suspected_requests import Note, key_of
from routers.api.requests import Reason

MODELS = {"device": SYNTHETIC}
SOON = replace(suspected_requests.TERMS, hold_s=0.01)
HEAD, SLOT = 64, 17
POISON, OTHER = body_of([4]), body_of([5])

# A gateway that works on the keys that it is given.
GATEWAY = """
import pathlib, sys
from deployments.gateway.queues.suspected_requests import RequestJournal
folder, name, *keys = sys.argv[1:]
journal = RequestJournal(pathlib.Path(folder), name, 200)
for key in keys:
    journal.note(bytes.fromhex(key), alone=False)
print("noted", flush=True)
sys.stdin.read()
"""


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing(MODELS, tmp_path) as stand:
        stand.app.suspected.watch(tmp_path / "notes", "own", 100)
        yield stand
        assert stand.app.suspected.journal is not None
        assert not noted(tmp_path)
        stand.app.suspected.close()


def notes(folder: Path) -> Iterator[bytes]:
    """What the gateway works on."""
    content = (folder / "notes" / "own.requests").read_bytes()
    slots = (content[at : at + SLOT] for at in range(HEAD, len(content), SLOT))
    return (slot for slot in slots if slot[0])


def noted(folder: Path) -> bool:
    return any(notes(folder))


async def infer(stand: Stand, body: bytes = POISON, **more: Any) -> Answer:
    return await ask(stand.app, "POST", INFER, body=body, **more)


def ended(stand: Stand, name: str, body: bytes = POISON, *, alone: bool) -> None:
    stand.app.suspected.gateway_ended(name, [Note(key_of(INFER, body), alone)])


# ---- suspects -----------------------------------------------------------------------------------


@pytest.fixture
def killed(tmp_path: Path) -> Callable[..., Callable[[], None]]:
    """Starts a gateway that works on these bodies, and returns what kills it."""

    def start(name: str, bodies: list[bytes]) -> Callable[[], None]:
        keys = [key_of(INFER, body).hex() for body in bodies]
        process = subprocess.Popen(
            [sys.executable, "-c", GATEWAY, str(tmp_path / "notes"), name, *keys],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "noted\n"

        def kill() -> None:
            process.kill()
            process.communicate()

        return kill

    return start


@pytest.mark.slow
async def test_a_gateway_that_is_killed_with_a_hundred_requests_has_none_of_them_refused(
    stand, killed
):
    bodies = [body_of([n]) for n in range(100)]
    kill = killed("a", bodies)
    stand.app.suspected.look()
    kill()
    answers = await asyncio.gather(*(infer(stand, body) for body in bodies))
    assert {answer.status for answer in answers} == {200}
    assert not stand.app.suspected.records  # each was answered: none is suspect any more


async def test_two_suspects_are_never_worked_on_at_once(tmp_path, monkeypatch):
    at_once: list[int] = []
    decode = InferCodec.decode

    def decodes(self: InferCodec, *args: Any) -> Any:
        at_once.append(len(list(notes(tmp_path))))
        time.sleep(0.001)
        return decode(self, *args)

    monkeypatch.setattr(InferCodec, "decode", decodes)
    monkeypatch.setattr(services, "POOL_THRESHOLD_BYTES", 0)
    async with standing(MODELS, tmp_path) as stand:
        stand.app.suspected.watch(tmp_path / "notes", "own", 100)
        bodies = [body_of([n]) for n in range(20)]
        for known in (False, True):
            for body in bodies if known else ():
                ended(stand, "a", body, alone=False)
            at_once.clear()
            answers = await asyncio.gather(*(infer(stand, body) for body in bodies))
            assert {answer.status for answer in answers} == {200}
            assert (max(at_once) == 1) is known
        stand.app.suspected.close()


async def test_a_suspect_that_is_here_before_the_end_that_it_caused_is_refused(stand):
    """As HAProxy may send it on."""
    ended(stand, "a", alone=False)
    asked = asyncio.create_task(infer(stand))
    for _ in range(20):
        await asyncio.sleep(0)
    ended(stand, "b", alone=True)
    assert (await asked).status == 422


async def test_a_request_that_a_second_gateway_ends_with_alone_is_refused_from_anybody(stand):
    ended(stand, "a", alone=False)
    ended(stand, "b", alone=True)
    answer = await infer(stand)
    assert answer.status == 422
    assert "several gateways" in json.loads(answer.body)["error"]
    assert answer.header(b"retry-after") is None
    assert (await infer(stand, OTHER)).status == 200


async def test_nothing_is_refused_for_what_it_was_beside(stand):
    for name in "abcdef":
        ended(stand, name, alone=False)
    assert (await infer(stand)).status == 200


async def test_what_is_new_beside_a_suspect_may_have_ended_the_gateway(stand):
    """So whoever ends gateways with ever other bytes has no request of others refused for it."""
    suspect = key_of(INFER, POISON)
    ended(stand, "a", alone=False)
    for name in "bc":
        beside = Note(key_of(INFER, name.encode()), alone=False)
        assert (await infer(stand)).status == 200  # it is suspect no more
        ended(stand, name, alone=False)
        stand.app.suspected.gateway_ended(f"{name}2", [Note(suspect, alone=True), beside])
    assert (await infer(stand)).status == 200


async def test_a_third_gateway_that_a_request_is_in_when_it_ends_is_enough(stand):
    for name in "abc":
        beside = Note(key_of(INFER, name.encode()), alone=False)
        note = Note(key_of(INFER, POISON), alone=name != "a")
        stand.app.suspected.gateway_ended(name, [note, beside])
    assert (await infer(stand)).status == 422


async def test_which_of_two_ends_is_heard_of_first_is_no_matter(stand):
    ended(stand, "b", alone=True)
    ended(stand, "a", alone=False)
    assert (await infer(stand)).status == 422


async def test_what_was_answered_since_is_not_refused_for_the_next_end(stand):
    ended(stand, "a", alone=False)
    assert (await infer(stand)).status == 200
    ended(stand, "b", alone=False)
    assert (await infer(stand)).status == 200


async def test_what_is_refused_for_what_it_is_has_ended_nothing(stand):
    ended(stand, "a", b"{", alone=False)
    assert (await infer(stand, b"{")).status == 400
    assert not stand.app.suspected.records


async def test_a_suspect_whose_turn_does_not_come_goes_on_without(stand, monkeypatch):
    monkeypatch.setattr(suspected_requests, "TERMS", SOON)
    ended(stand, "a", alone=False)
    holder = await stand.app.suspected.permits.acquire("somebody", 1.0)
    assert (await infer(stand)).status == 200
    holder.release()


async def test_what_becomes_known_while_a_suspect_waits_counts(stand):
    ended(stand, "a", alone=False)
    holder = await stand.app.suspected.permits.acquire("somebody", 1.0)
    waiting = asyncio.create_task(infer(stand))
    await asyncio.sleep(0.01)
    ended(stand, "b", alone=True)
    holder.release()
    assert (await waiting).status == 422


# ---- what is noted ------------------------------------------------------------------------------


async def test_a_request_is_noted_while_it_is_parsed_and_encoded_and_not_while_it_waits(
    stand, tmp_path, monkeypatch
):
    seen: list[bool] = []
    decode, encode = InferCodec.decode, InferCodec.encode

    def decodes(self: InferCodec, *args: Any) -> Any:
        seen.append(noted(tmp_path))
        return decode(self, *args)

    def encodes(self: InferCodec, *args: Any) -> Any:
        seen.append(noted(tmp_path))
        return encode(self, *args)

    monkeypatch.setattr(InferCodec, "decode", decodes)
    monkeypatch.setattr(InferCodec, "encode", encodes)
    channel = stand.channels["device"]
    channel.hold()
    asking = asyncio.create_task(infer(stand))
    await channel.sent(1)
    assert not noted(tmp_path)
    channel.let_go()
    assert (await asking).status == 200
    assert seen == [True, True]


async def test_what_goes_on_to_a_cheaper_model_is_noted_again(tmp_path, monkeypatch):
    seen: list[bool] = []
    split = InferCodec.split

    def splits(self: InferCodec, *args: Any) -> Any:
        seen.append(noted(tmp_path))
        return split(self, *args)

    monkeypatch.setattr(InferCodec, "split", splits)
    models = {"device": {**SYNTHETIC, "fallback": "small"}, "small": SYNTHETIC}
    async with standing(models, tmp_path) as stand:
        stand.app.suspected.watch(tmp_path / "notes", "own", 100)
        channel = stand.channels["device"]
        channel.hold()
        asking = asyncio.create_task(infer(stand))
        await channel.sent(1)
        late = errors.Overloaded("late", reason=Reason.LATE.value)
        stand.models.queued["device"].queue.end_all(late, begun_only=False)
        answer = await asking
        assert answer.header(b"x-served-by") == b"small"
        assert seen == [True, True]
        channel.let_go()
        stand.app.suspected.close()


async def test_requests_that_outlast_an_orderly_end_are_answered(tmp_path):
    async with standing(MODELS, tmp_path) as stand:
        stand.app.suspected.watch(tmp_path / "notes", "own", 100)
        channel = stand.channels["device"]
        channel.hold()
        asking = asyncio.create_task(infer(stand))
        await channel.sent(1)
        stand.app.suspected.close()
        assert list((tmp_path / "notes").iterdir()) == []
        channel.let_go()
        assert (await asking).status == 200
        assert (await infer(stand)).status == 200


async def test_a_compressed_body_is_noted_before_it_is_inflated(stand, tmp_path, monkeypatch):
    seen: list[bool] = []
    services = type(stand.app._services)
    inflated = services.inflated

    async def inflates(self: Any, *args: Any) -> bytes:
        seen.append(noted(tmp_path))
        return await inflated(self, *args)

    monkeypatch.setattr(services, "inflated", inflates)
    headers = [(b"content-encoding", b"gzip")]
    body = gzip.compress(POISON)
    assert (await infer(stand, body, headers=headers)).status == 200
    assert seen == [True]
    ended(stand, "a", body, alone=False)
    ended(stand, "b", body, alone=True)
    assert (await infer(stand, body, headers=headers)).status == 422


async def test_a_prompt_is_noted_until_it_waits(
    stand, tmp_path, description: Callable[..., ModelDescription]
):
    engines = add(stand, description)
    body = json.dumps(streamed()).encode()
    stand.app.suspected.gateway_ended("a", [Note(key_of(CHAT, body), alone=False)])
    asking = asyncio.create_task(ask(stand.app, "POST", CHAT, body=body, pieces=True))
    asked = await engines.until_begun(1)
    assert not noted(tmp_path)
    engines.say(asked.lease_id, b"data: [DONE]\n\n", tokens=(1, 0, 1), end=StreamEnd.DONE)
    assert (await asking).status == 200
    assert not stand.app.suspected.records


async def test_without_a_folder_requests_are_answered_as_ever(tmp_path):
    (tmp_path / "notes").write_text("in the way")
    async with standing(MODELS, tmp_path) as stand:
        stand.app.suspected.watch(tmp_path / "notes", "own", 100)
        assert (await infer(stand)).status == 200
        stand.app.suspected.close()


# ---- gateways of other nodes --------------------------------------------------------------------


async def test_gateways_of_other_nodes_know_of_suspects_and_refuse_what_one_of_them_refuses(
    stand, tmp_path
):
    async with standing(MODELS, tmp_path / "other") as other:
        other.app.suspected.watch(tmp_path / "other notes", "own", 100)
        registry, stands = Registry(0.0), [stand, other]
        exchanges = [CrashExchange(each.models, each.app.suspected.records) for each in stands]

        def tell() -> None:
            for number in (0, 1, 0):
                said = GatewaySnapshot(crashes=exchanges[number].report())
                exchanges[number].on_report(registry.push(f"gateway-{number}", said, 0.0).crashes)

        ended(stand, "a", alone=False)
        tell()
        # One loss there, one here: two in all.
        ended(other, "b", alone=True)
        assert (await infer(other)).status == 422
        tell()
        assert (await infer(stand)).status == 422
        other.app.suspected.close()
