"""Frames out of bytes: however they are split, and none that may not come."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.contract.channel import frames
from deployments.contract.channel.frames import (
    GATEWAY_KINDS,
    HEAD,
    LATER_KINDS,
    PROGRESS_BYTES,
    REPLICA_KINDS,
    STALLED_S,
    FrameError,
    FrameReader,
    Kind,
    StallWatch,
    framed,
)

ALL = frozenset(Kind)
Seen = tuple[Kind, int, bytes]
sent_frames = st.lists(
    st.tuples(st.sampled_from(Kind), st.integers(0, 2**64 - 1), st.binary(max_size=40)), max_size=8
)


def flat(sent: Sequence[Seen]) -> bytes:
    return b"".join(b"".join(framed(kind, lease, [body])) for kind, lease, body in sent)


def read(reader: FrameReader, *chunks: bytes) -> list[Seen]:
    return [
        (frame.kind, frame.lease_id, bytes(frame.body))
        for chunk in chunks
        for frame in reader.feed(chunk)
    ]


@given(sent_frames, st.data())
def test_any_split_of_any_frames_gives_the_same_frames(
    sent: list[Seen], data: st.DataObject
) -> None:
    whole = flat(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    chunks = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    reader = FrameReader(ALL)
    assert read(reader, *chunks) == sent
    assert (reader.frames, reader.rest_bytes) == (len(sent), 0)


@given(sent_frames)
def test_a_byte_at_a_time_gives_the_same_frames(sent: list[Seen]) -> None:
    assert read(FrameReader(ALL), *[bytes([byte]) for byte in flat(sent)]) == sent


def test_a_frame_in_parts_is_that_of_its_parts_in_one() -> None:
    parts = framed(Kind.BATCH, 7, [b"ab", bytearray(b"c"), memoryview(b"de")])
    assert b"".join(parts) == b"".join(framed(Kind.BATCH, 7, [b"abcde"]))


@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_a_body_up_to_the_limit_is_taken(size: int) -> None:
    sent = [(Kind.REPLY, 3, bytes(size))]
    assert read(FrameReader(ALL, 100), flat(sent)) == sent


def test_a_body_past_the_limit_is_refused_before_any_of_it_has_come() -> None:
    with pytest.raises(FrameError, match="101 bytes"):
        read(FrameReader(ALL, 100), HEAD.pack(101, Kind.REPLY, 3))


def test_a_body_that_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 8)
    assert len(framed(Kind.REPLY, 1, [b"1234", b"5678"])) == 3
    with pytest.raises(FrameError, match="9 bytes"):
        framed(Kind.REPLY, 1, [b"1234", b"56789"])


@pytest.mark.parametrize("kind", [0, 6, 9, 255, Kind.WELCOME])
def test_a_kind_that_may_not_come_is_refused_after_those_before_it(kind: int) -> None:
    good = [(Kind.HELLO, 0, b"hi"), (Kind.HELLO, 0, b"")]
    reader = FrameReader(frozenset({Kind.HELLO}))
    coming = reader.feed(flat(good) + HEAD.pack(0, kind, 0))
    first, second = next(coming), next(coming)
    with pytest.raises(FrameError, match=f"kind {kind} "):
        next(coming)
    assert [(f.kind, f.lease_id, bytes(f.body)) for f in (first, second)] == good


def test_a_frame_of_a_kind_to_come_is_skipped_and_the_next_is_read() -> None:
    later = b"".join([HEAD.pack(3, kind, 1) + b"new" for kind in LATER_KINDS])
    reader = FrameReader(GATEWAY_KINDS, 100)
    assert read(reader, later + flat([(Kind.DROP, 7, b"")])) == [(Kind.DROP, 7, b"")]
    assert reader.rest_bytes == 0
    assert not set(Kind) & set(LATER_KINDS)
    with pytest.raises(FrameError, match="101 bytes"):
        read(reader, HEAD.pack(101, LATER_KINDS.start, 1))


@pytest.mark.parametrize("kind", [0, Kind.HELLO, 31, 64, 255])
def test_a_kind_that_may_never_come_ends_a_connection_that_stands(kind: int) -> None:
    for kinds in (GATEWAY_KINDS, REPLICA_KINDS):
        with pytest.raises(FrameError, match=f"kind {kind} "):
            read(FrameReader(kinds), HEAD.pack(0, kind, 0))


def test_what_may_come_may_be_changed_between_two_frames_of_one_read() -> None:
    reader, seen = FrameReader(frozenset({Kind.HELLO}), 4), []
    for frame in reader.feed(flat([(Kind.HELLO, 0, b"1234"), (Kind.PROOF, 0, b"12345")])):
        seen.append(frame.kind)
        reader.kinds, reader.max_bytes = frozenset({Kind.PROOF}), 5
    assert seen == [Kind.HELLO, Kind.PROOF]


def test_a_size_that_lies_makes_nothing_be_held() -> None:
    reader = FrameReader(ALL, frames.MAX_FRAME_BYTES)
    tracemalloc.start()
    assert read(reader, HEAD.pack(frames.MAX_FRAME_BYTES, Kind.BATCH, 1), b"abc") == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reader.rest_bytes == HEAD.size + 3
    assert peak < 1 << 16


def test_frames_that_were_read_stay_as_they_are_while_more_comes() -> None:
    reader = FrameReader(ALL)
    whole = flat([(Kind.REPLY, 1, b"first"), (Kind.REPLY, 2, b"second")])
    list(reader.feed(whole[:3]))
    (first,) = reader.feed(whole[3:22])
    (second,) = reader.feed(whole[22:])
    assert (bytes(first.body), bytes(second.body)) == (b"first", b"second")


# ---- frames that do not come to their end -------------------------------------------------------


def test_a_frame_that_stands_still_is_stalled_and_one_that_has_just_begun_is_not() -> None:
    reader = FrameReader(ALL)
    watch = StallWatch(reader)
    read(reader, HEAD.pack(100, Kind.BATCH, 1))
    assert not watch.stalled(1000.0)
    assert not watch.stalled(1000.0 + STALLED_S)
    assert watch.stalled(1000.0 + STALLED_S + 0.1)


def test_silence_between_two_frames_is_no_stall() -> None:
    reader = FrameReader(ALL)
    watch = StallWatch(reader)
    read(reader, flat([(Kind.BATCH, 1, b"all")]))
    assert not watch.stalled(0.0)
    assert not watch.stalled(10 * STALLED_S)


@pytest.mark.parametrize(("each", "stalled"), [(PROGRESS_BYTES, False), (100, True)])
def test_a_frame_goes_on_as_long_as_it_brings_enough(each: int, stalled: bool) -> None:
    reader = FrameReader(ALL, frames.MAX_FRAME_BYTES)
    watch = StallWatch(reader)
    read(reader, HEAD.pack(100 * PROGRESS_BYTES, Kind.BATCH, 1))
    said = []
    for step in range(6):
        said.append(watch.stalled(step * STALLED_S / 2))
        read(reader, bytes(each))
    assert any(said) == stalled


def test_frames_one_after_another_are_progress_though_another_is_always_half_here() -> None:
    reader = FrameReader(ALL)
    watch = StallWatch(reader)
    whole = flat([(Kind.BATCH, 1, b"0123456789")])
    read(reader, whole[:5])
    for step in range(6):
        assert not watch.stalled(step * STALLED_S)
        assert len(read(reader, whole[5:] + whole[:5])) == 1
