"""One connection to a replica, over real sockets, and what ends it, with a reason: somebody else at
its address, what may not come, silence. On both event loops, because Serve's is uvloop."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from channel_net import Say, Stranger, net, nothing
from fake_engines import until

from deployments.contract.channel.frames import (
    HEAD,
    PROGRESS_BYTES,
    STALLED_S,
    Frame,
    FrameError,
    Kind,
    framed,
)
from deployments.contract.channel.handshake import Challenge, ReplicaHandshake, refusal
from deployments.contract.codec import WIRE
from deployments.gateway.queues.connections import SILENCE_S

CHANNEL = "deployments.gateway.queues.connections"


# ---- what must not come -------------------------------------------------------------------------


async def test_a_server_that_never_answers_the_handshake_is_given_up_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"{CHANNEL}.HANDSHAKE_LIMIT_S", 0.02)
    async with net() as n:
        stranger = await n.stranger("r1", nothing, mute=True)
        n.list("r1")
        await until(lambda: stranger.connections >= 2)
        assert "no welcome within 0.02 s" in said.text
        assert n.listener.told == []


async def test_a_key_that_never_comes_is_given_up_and_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"{CHANNEL}.HANDSHAKE_LIMIT_S", 0.02)
    async with net() as n:
        await n.start("r1")
        asked = []

        async def never_at_first(replica_id: str) -> bytes:
            asked.append(replica_id)
            if len(asked) == 1:
                await asyncio.Event().wait()
            return n.keys[replica_id]

        n.channel._key_of = never_at_first
        n.list("r1")
        await n.reaches("r1")
        assert "no connection: no answer" in said.text


def challenge_of_a_liar(stranger: Stranger) -> None:
    stranger.send(
        Kind.CHALLENGE, 0, [msgspec.msgpack.encode(Challenge(WIRE, bytes(32), bytes(32)))]
    )


def challenge_of_the_future(stranger: Stranger) -> None:
    stranger.send(Kind.CHALLENGE, 0, [msgspec.msgpack.encode(Challenge(9, bytes(32), bytes(32)))])


@pytest.mark.parametrize(
    ("say", "reason"),
    [
        (lambda s: s.write(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "may not come here"),
        (lambda s: s.write(HEAD.pack(4097, Kind.CHALLENGE, 0)), "at most 4096 may come here"),
        (lambda s: s.send(Kind.WELCOME), "a welcome without a challenge"),
        (lambda s: s.send(Kind.REPLY, 1), "a frame of kind 21 may not come here"),
        (lambda s: s.send(Kind.CHALLENGE, 0, [b"\xc1"]), "a challenge that cannot be read"),
        (challenge_of_a_liar, "the replica does not know its key"),
        (challenge_of_the_future, "the replica takes version 9, which was not offered"),
        (lambda s: s.send(Kind.REFUSED, 0, [refusal("not you")]), "refused: not you"),
        (lambda s: s.send(Kind.REFUSED, 0, [b"\xc1"]), "a refusal that cannot be read"),
        (lambda s: s.close(), "the replica closed it|reset"),
    ],
)
async def test_what_answers_unlike_a_replica_is_refused_and_nothing_was_lost(
    say: Say, reason: str, said: pytest.LogCaptureFixture
) -> None:
    async with net() as n:
        await n.stranger("r1", say, mute=True)
        n.list("r1")
        await until(lambda: "no connection" in said.text)
        assert any(part in said.text for part in reason.split("|"))
        assert n.listener.told == []
        assert n.channel.counts.connects == 0


async def test_a_second_challenge_is_refused(said: pytest.LogCaptureFixture) -> None:
    async with net() as n:
        stranger = await n.stranger("r1", nothing)
        take, twice = stranger._take, []

        def challenges_twice(frame: Frame, shaking: ReplicaHandshake) -> None:
            take(frame, shaking)
            if frame.kind is Kind.HELLO:
                twice.append(frame)
                stranger.send(Kind.CHALLENGE, 0, [b"again"])

        stranger._take = challenges_twice  # type: ignore[method-assign]
        n.list("r1")
        await until(lambda: "a frame of kind 2 may not come here" in said.text)
        assert n.listener.lost == []


@pytest.mark.parametrize(
    ("say", "reason"),
    [
        (lambda s: s.write(b"\xff" * 64), "a frame of kind 255 may not come here"),
        (lambda s: s.send(Kind.BATCH, 1), "a frame of kind 10 may not come here"),
        (lambda s: s.send(Kind.WELCOME), "a frame of kind 4 may not come here"),
        (lambda s: s.write(HEAD.pack((1 << 30) + 1, Kind.REPLY, 1)), "at most 1073741824"),
    ],
)
async def test_what_may_not_come_ends_the_connection_with_its_reason(say: Say, reason: str) -> None:
    async with net() as n:
        stranger = await n.stranger("r1", nothing)
        n.list("r1")
        await n.reaches("r1")
        say(stranger)
        await until(lambda: n.listener.lost == ["r1"])
        assert reason in n.listener.reasons[0]
        assert n.listener.frames == []
        await n.reaches("r1")
        assert stranger.connections == 2


async def test_what_came_before_the_garbage_is_taken_in() -> None:
    async with net() as n:
        stranger = await n.stranger("r1", nothing)
        n.list("r1")
        await n.reaches("r1")
        stranger.write(b"".join(framed(Kind.REPLY, 1, [b"good"])) + b"\xff" * 64)
        await until(lambda: n.listener.lost == ["r1"])
        assert n.listener.frames == [("r1", Kind.REPLY, 1, b"good")]


async def test_what_follows_the_welcome_in_one_read_is_taken_in() -> None:
    async with net() as n:
        await n.stranger("r1", lambda stranger: stranger.send(Kind.STEPS, 0, [b"first"]))
        n.list("r1")
        await until(lambda: bool(n.listener.frames))
        assert n.listener.frames == [("r1", Kind.STEPS, 0, b"first")]
        assert n.listener.told == [["r1"]]


async def test_a_listener_that_cannot_go_on_ends_the_connection() -> None:
    async with net() as n:
        await n.start("r1")
        n.list("r1")
        await n.reaches("r1")
        session = await n.link("r1")
        n.listener.fault = FrameError("steps that cannot be read")
        session.send(Kind.STEPS, 0, [b"x"])
        session.send(Kind.STEPS, 0, [b"y"])
        await until(lambda: n.listener.lost == ["r1"])
        assert n.listener.reasons == ["steps that cannot be read"]
        n.listener.fault = None
        await n.reaches("r1")


# ---- silence ------------------------------------------------------------------------------------


class Clock:
    """Seconds, as the channel reads them to find silence."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def passes(self, seconds: float) -> None:
        """The channel has looked at its connections since."""
        self.now += seconds
        await asyncio.sleep(0.01)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(f"{CHANNEL}.monotonic", made)
    monkeypatch.setattr("deployments.gateway.queues.connections.monotonic", made)
    return made


async def test_a_replica_that_should_speak_is_lost_when_it_is_silent_for_too_long(
    clock: Clock,
) -> None:
    async with net(sends_heartbeats=True) as n:
        stranger = await n.stranger("r1", nothing)
        n.list("r1")
        await n.reaches("r1")
        for count in (1, 2, 3):
            await clock.passes(SILENCE_S)
            stranger.send(Kind.STEPS, 0, [b"alive"])
            await until(lambda count=count: len(n.listener.frames) == count)  # type: ignore[misc]
        await clock.passes(SILENCE_S)
        assert n.listener.lost == []
        await clock.passes(0.1)
        await until(lambda: bool(n.listener.reasons))
        assert n.listener.reasons == ["silent for 10 s"]
        await n.reaches("r1")


async def test_a_replica_that_need_not_speak_may_be_silent(clock: Clock) -> None:
    async with net() as n:
        await n.start("r1")
        n.list("r1")
        await n.reaches("r1")
        await clock.passes(3600.0)
        assert n.listener.lost == []


@pytest.mark.parametrize("part", [1, HEAD.size - 1, HEAD.size, HEAD.size + 99])
async def test_a_frame_that_never_completes_ends_the_connection(clock: Clock, part: int) -> None:
    async with net() as n:
        stranger = await n.stranger("r1", nothing)
        n.list("r1")
        await n.reaches("r1")
        received = n.channel.counts.received_bytes
        stranger.write(b"".join(framed(Kind.REPLY, 1, [bytes(100)]))[:part])
        await until(lambda: n.channel.counts.received_bytes == received + part)
        await clock.passes(0.0)
        await clock.passes(STALLED_S)
        assert n.listener.lost == []
        await clock.passes(0.1)
        await until(lambda: bool(n.listener.reasons))
        assert n.listener.reasons == ["a frame has not come to its end for 10 s"]
        await n.reaches("r1")


async def test_a_frame_that_comes_slowly_is_waited_for(clock: Clock) -> None:
    async with net() as n:
        stranger = await n.stranger("r1", nothing)
        n.list("r1")
        await n.reaches("r1")
        data = b"".join(framed(Kind.REPLY, 1, [bytes(4 * PROGRESS_BYTES)]))
        for start in range(0, len(data), PROGRESS_BYTES):
            stranger.write(data[start : start + PROGRESS_BYTES])
            await clock.passes(STALLED_S - 0.1)
        await until(lambda: bool(n.listener.frames))
        assert n.listener.lost == []
        assert [kind for _, kind, _, _ in n.listener.frames] == [Kind.REPLY]
