"""The connections to a model's replicas, over real sockets: when one is opened, what is lost with
it, when it is let go. On both event loops, because Serve's is uvloop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from channel_net import CALLER, Net, net, nothing, ours
from fake_engines import until

from deployments.contract.channel.frames import HEAD, FrameError, Kind
from deployments.contract.channel.handshake import ReplicaHandshake, new_key
from deployments.contract.codec import WIRE
from deployments.gateway.queues.connections import CREDIT_EVERY_BYTES
from deployments.process.replica_directory import RunningReplica

# ---- connections that stand ---------------------------------------------------------------------


async def test_a_replica_is_connected_as_soon_as_it_is_listed() -> None:
    async with net() as n:
        core = await n.start("r1")
        n.list("r1")
        assert n.channel.reached == []
        assert not n.channel.send("r1", Kind.BATCH, 1)
        await n.reaches("r1")
        assert (await n.link("r1")).gateway == "g"
        assert n.listener.told == [["r1"]]
        assert n.channel.counts.connects == 1
        assert core.got == []


async def test_what_is_sent_arrives_in_order_and_so_do_answers() -> None:
    async with net() as n:
        core = await n.start("r1")
        n.list("r1")
        await n.reaches("r1")
        large = bytes(range(256)) * 8192
        assert n.channel.send("r1", Kind.BATCH, 1, [b"ab", large, b"c"])
        assert n.channel.send("r1", Kind.DROP, 1)
        await until(lambda: len(core.got) == 2)
        assert core.got == [(Kind.BATCH, 1), (Kind.DROP, 1)]
        assert core.bodies == [b"ab" + large + b"c", b""]
        session = await n.link("r1")
        session.send(Kind.STARTED, 1)
        session.send(Kind.REPLY, 1, [b"x", large])
        await until(lambda: len(n.listener.frames) == 2)
        assert n.listener.frames == [
            ("r1", Kind.STARTED, 1, b""), ("r1", Kind.REPLY, 1, b"x" + large),
        ]  # fmt: skip
        assert n.channel.counts.sent_frames == 2
        assert n.channel.counts.sent_bytes == 2 * HEAD.size + len(large) + 3


async def test_each_replica_has_its_own_connection() -> None:
    async with net() as n:
        cores = [await n.start("r1"), await n.start("r2")]
        n.list("r1", "r2")
        await n.reaches("r1", "r2")
        n.channel.send("r1", Kind.BATCH, 1)
        n.channel.send("r2", Kind.BATCH, 2)
        await until(lambda: all(core.got for core in cores))
        assert [core.got for core in cores] == [[(Kind.BATCH, 1)], [(Kind.BATCH, 2)]]
        assert n.channel.counts.connects == 2


async def test_a_body_that_is_too_large_is_an_error_and_the_connection_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with net() as n:
        core = await n.start("r1")
        n.list("r1")
        await n.reaches("r1")
        monkeypatch.setattr("deployments.contract.channel.frames.MAX_FRAME_BYTES", 9)
        with pytest.raises(FrameError):
            n.channel.send("r1", Kind.BATCH, 1, [bytes(10)])
        n.channel.send("r1", Kind.BATCH, 2, [bytes(9)])
        await until(lambda: bool(core.got))
        assert core.got == [(Kind.BATCH, 2)]


async def test_how_much_of_a_stream_was_taken_in_is_told_now_and_then() -> None:
    async with net(sends_heartbeats=True) as n:
        await n.start("r1")
        n.list("r1")
        await n.reaches("r1")
        session = await n.link("r1")
        session.send(Kind.STEPS, 0, [bytes(CREDIT_EVERY_BYTES - 1)])
        session.send(Kind.REPLY, 1, [bytes(CREDIT_EVERY_BYTES)])
        await until(lambda: len(n.listener.frames) == 2)
        assert n.channel.counts.sent_frames == 0
        session.send(Kind.STEPS, 0, [b"x"])
        await until(lambda: session._taken_bytes == CREDIT_EVERY_BYTES)
        assert n.channel.counts.sent_frames == 1


async def test_a_replica_that_has_sent_all_it_may_goes_on_once_it_was_taken_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deployments.replica.channel_server.WINDOW_BYTES", 2 * CREDIT_EVERY_BYTES)
    async with net(sends_heartbeats=True) as n:
        await n.start("r1")
        n.list("r1")
        await n.reaches("r1")
        session = await n.link("r1")
        for _ in range(20):
            await asyncio.wait_for(session.room(), 5.0)
            session.send(Kind.STEPS, 0, [bytes(CREDIT_EVERY_BYTES)])
        await until(lambda: len(n.listener.frames) == 20)


async def test_no_callers_context_reaches_what_a_connection_says() -> None:
    """Inside a request's context the caller's disconnect would cancel what others wait for."""
    async with net() as n:
        await n.start("r1")
        CALLER.set("somebody")
        n.list("r1")
        await n.reaches("r1")
        n.channel.send("r1", Kind.BATCH, 1)
        session = await n.link("r1")
        session.send(Kind.REPLY, 1)
        await until(lambda: bool(n.listener.frames))
        session.abort("a test")
        await until(lambda: n.listener.told == [["r1"], [], "lost r1", ["r1"]])
        assert n.listener.callers == {""}


# ---- connections that break ---------------------------------------------------------------------


async def test_a_broken_connection_loses_what_was_out_on_it_and_is_opened_again() -> None:
    async with net() as n:
        await n.start("r1")
        other = await n.start("r2")
        n.list("r1", "r2")
        await n.reaches("r1", "r2")
        n.listener.told.clear()
        (await n.link("r1")).abort("a test")
        await until(lambda: n.listener.told[-1:] == [["r1", "r2"]])
        # Nothing is sent there any more by the time that its leases are placed elsewhere.
        assert n.listener.told == [["r2"], "lost r1", ["r1", "r2"]]
        assert n.channel.counts.connects == 3
        assert len(other.links) == 1
        n.channel.send("r1", Kind.BATCH, 7)
        await until(lambda: n.cores["r1"].got == [(Kind.BATCH, 7)])


async def test_a_replica_that_dies_is_tried_again_until_it_is_no_longer_listed(
    said: pytest.LogCaptureFixture,
) -> None:
    async with net() as n:
        await n.start("r1")
        n.list("r1")
        await n.reaches("r1")
        await n.stop("r1")
        await until(lambda: said.text.count("replica r1: no connection") > 3)
        assert n.listener.lost == ["r1"]
        assert not n.channel.send("r1", Kind.BATCH, 1)
        n.list()
        await until(lambda: not ours(asyncio.all_tasks()))
        tried = said.text.count("replica r1: no connection")
        await asyncio.sleep(0.02)
        assert said.text.count("replica r1: no connection") == tried


async def test_another_replica_at_the_same_address_is_not_taken_for_the_listed_one(
    said: pytest.LogCaptureFixture,
) -> None:
    async with net() as n:
        await n.start("r1")
        n.list("r1")
        await n.reaches("r1")
        await n.start("r2", await n.stop("r1"))
        assert n.addresses["r1"] == n.addresses["r2"]
        await until(lambda: "this is replica r2, not 'r1'" in said.text)
        assert n.channel.reached == []
        n.list("r2")
        await n.reaches("r2")
        assert [session.gateway for session in n.cores["r2"].links] == ["g"]


async def test_a_replica_with_another_key_is_refused_until_serve_knows_the_new_one(
    said: pytest.LogCaptureFixture,
) -> None:
    async with net() as n:
        await n.start("r1")
        known = n.keys["r1"] = new_key()
        n.list("r1")
        await until(lambda: "the replica does not know its key" in said.text)
        assert n.channel.reached == []
        assert n.keys["r1"] == known
        n.keys["r1"] = n.servers["r1"].key
        await n.reaches("r1")


async def test_a_replica_of_which_serve_knows_no_key_is_tried_again(
    said: pytest.LogCaptureFixture,
) -> None:
    async with net() as n:
        await n.start("r1")
        key = n.keys.pop("r1")
        n.list("r1")
        await until(lambda: "no connection: KeyError" in said.text)
        n.keys["r1"] = key
        await n.reaches("r1")


@pytest.mark.parametrize("metadata", [(), (("channel", ""),), (("channel", "nowhere"),)])
async def test_a_replica_that_tells_no_address_harms_no_other(metadata: Any) -> None:
    async with net() as n:
        await n.start("r1")
        of_r1 = RunningReplica("r1", (("channel", n.addresses["r1"]),))
        n.keys["r2"] = new_key()
        n.channel.follow([RunningReplica("r2", metadata), of_r1])
        await n.reaches("r1")
        assert n.channel.reached == ["r1"]


@pytest.mark.parametrize("versions", ["2", "5,6"])
async def test_a_replica_without_a_common_version_is_named_once_and_not_connected(
    versions: str, said: pytest.LogCaptureFixture
) -> None:
    async with net() as n:
        await n.start("r1")
        await n.start("r2")
        at = {name: ("channel", n.addresses[name]) for name in ("r1", "r2")}
        other = RunningReplica("r1", (at["r1"], ("channel_versions", versions)))
        for _ in range(3):
            n.channel.follow([other, RunningReplica("r2", (at["r2"],))])
            await n.reaches("r2")
        assert n.cores["r1"].links == []
        assert said.text.count("they cannot work together") == 1
        n.channel.follow([RunningReplica("r2", (at["r2"],))])
        n.channel.follow([RunningReplica("r2", (at["r2"],)), RunningReplica("r1", (at["r1"],))])
        await n.reaches("r1", "r2")


@pytest.mark.parametrize("spoken", [(4, 3), (3,)])
async def test_both_sides_speak_the_best_version_that_they_have_in_common(
    spoken: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReplicaHandshake.__init__, "__defaults__", (spoken,))
    async with net() as n:
        await n.start("r1")
        n.list("r1")
        await n.reaches("r1")
        assert (n.channel.version("r1"), (await n.link("r1")).version) == (spoken[0], spoken[0])
        assert n.channel.version("unknown") == WIRE


# ---- replicas that go ---------------------------------------------------------------------------


async def test_a_replica_that_goes_gets_nothing_new_and_its_answers_still_come() -> None:
    async with net() as n:
        core = await n.start("r1")
        n.list("r1")
        await n.reaches("r1")
        session = await n.link("r1")
        core.idle.clear()
        n.channel.send("r1", Kind.BATCH, 1)
        draining = asyncio.create_task(n.servers["r1"].drain())
        await n.reaches()
        assert n.listener.told == [["r1"], []]
        await asyncio.wait_for(asyncio.shield(session.goodbye), 1.0)
        assert core.got == [(Kind.BATCH, 1)]  # all that was sent lies before the goodbye
        session.send(Kind.REPLY, 1, [b"late but there"])
        await until(lambda: bool(n.listener.frames))
        assert n.listener.frames == [("r1", Kind.REPLY, 1, b"late but there")]
        core.idle.set()
        await draining
        n.list()
        n.channel.release("r1")
        await until(lambda: not core.links)
        assert n.listener.told == [["r1"], [], "lost r1"]  # with nothing out on it


async def test_a_replica_that_goes_is_reached_again_where_it_comes_back() -> None:
    async with net() as n:
        stranger = await n.stranger("r1", nothing)
        n.list("r1")
        await n.reaches("r1")
        stranger.send(Kind.GOAWAY)
        stranger.send(Kind.GOAWAY)
        await n.reaches()
        await until(lambda: [frame.kind for frame in stranger.got] == [Kind.GOAWAY] * 2)
        stranger._writers[-1].close()
        await n.reaches("r1")
        assert n.listener.told == [["r1"], [], "lost r1", ["r1"]]


async def test_a_replica_that_is_no_longer_listed_keeps_its_connection_until_it_is_released() -> (
    None
):
    async with net() as n:
        core = await n.start("r1")
        n.list("r1")
        await n.reaches("r1")
        session = await n.link("r1")
        n.channel.release("r1")  # it is listed: nothing happens
        n.list()
        assert n.channel.reached == []
        assert n.channel.send("r1", Kind.DROP, 1)
        session.send(Kind.REPLY, 1, [b"x"])
        await until(lambda: bool(core.got) and bool(n.listener.frames))
        n.channel.release("r1")
        await until(lambda: not core.links and not ours(asyncio.all_tasks()))
        assert not n.channel.send("r1", Kind.DROP, 1)


async def test_a_connection_without_leases_that_breaks_once_unlisted_is_not_opened_again() -> None:
    async with net() as n:
        core = await n.start("r1")
        n.list("r1")
        await n.reaches("r1")
        session = await n.link("r1")
        n.list()
        session.abort("a test")
        await until(lambda: not core.links and not ours(asyncio.all_tasks()))
        assert n.listener.lost == ["r1"]
        assert n.channel.counts.connects == 1


async def test_a_replica_that_is_listed_again_is_reached_by_the_same_connection() -> None:
    async with net() as n:
        await n.start("r1")
        n.list("r1")
        await n.reaches("r1")
        n.list()
        n.list("r1")
        assert n.channel.reached == ["r1"]
        n.channel.release("r1")
        await asyncio.sleep(0.005)
        assert n.channel.counts.connects == 1
        assert n.listener.lost == []


# ---- the end ------------------------------------------------------------------------------------


async def never(replica_id: str) -> bytes:
    await asyncio.Event().wait()
    return b""


@pytest.mark.parametrize("state", ["connected", "shaking hands", "pausing", "asking for the key"])
async def test_a_channel_that_is_closed_leaves_nothing_behind(state: str) -> None:
    made = Net()
    core = await made.start("r1")
    if state == "shaking hands":
        stranger = await made.stranger("r1", nothing, mute=True)
    if state == "asking for the key":
        made.channel._key_of = never
    if state == "pausing":
        made.keys.clear()
    made.list("r1")
    if state == "connected":
        await made.reaches("r1")
        await made.link("r1")
    elif state == "shaking hands":
        await until(lambda: stranger.connections == 1)
    else:
        await asyncio.sleep(0.002)
    made.channel.close()
    await until(lambda: not ours(asyncio.all_tasks()) and not core.links)
    assert made.channel._timer is None
    connects = made.channel.counts.connects
    await asyncio.sleep(0.01)
    assert made.channel.counts.connects == connects
    assert not made.channel.send("r1", Kind.BATCH, 1)
    await made.close()


async def test_a_channel_that_is_closed_says_what_it_lost() -> None:
    async with net() as n:
        await n.start("r1")
        n.list("r1")
        await n.reaches("r1")
        n.channel.close()
        assert n.listener.lost == []  # never from inside a call
        await until(lambda: n.listener.lost == ["r1"])
        assert n.listener.reasons == ["the model's queue was closed"]
