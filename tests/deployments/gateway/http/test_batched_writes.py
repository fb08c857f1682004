"""What a turn of the loop writes leaves together, in order, and nothing of it is lost or kept."""

from __future__ import annotations

import asyncio
from typing import Any

from deployments.gateway.http.strict_protocol import MAX_UNSENT_BYTES, BatchedTransport


class Wire:
    """A transport that notes what is asked of it."""

    def __init__(self, said: list[Any], name: str = "") -> None:
        self._said, self._name = said, name
        self.closing = False

    def write(self, data: bytes) -> None:
        self._said.append((self._name, data) if self._name else data)

    def is_closing(self) -> bool:
        return self.closing

    def write_eof(self) -> None:
        self._said.append("eof")

    def close(self) -> None:
        self.closing = True
        self._said.append("close")

    def abort(self) -> None:
        self.closing = True
        self._said.append("abort")

    def get_write_buffer_size(self) -> int:
        return 100

    def pause_reading(self) -> None:
        self._said.append("pause")


def _batched(wire: Wire) -> BatchedTransport:
    return BatchedTransport(wire, asyncio.get_running_loop())


async def test_the_writes_of_one_turn_go_out_together_after_it() -> None:
    said: list[Any] = []
    one, two = _batched(Wire(said, "one")), _batched(Wire(said, "two"))
    one.write(b"a")
    two.write(b"b")
    one.write(b"c")
    assert said == []
    assert one.get_write_buffer_size() == 102
    await asyncio.sleep(0)
    assert said == [("one", b"ac"), ("two", b"b")]
    assert one.get_write_buffer_size() == 100
    one.write(b"d")
    await asyncio.sleep(0)
    assert said[2:] == [("one", b"d")]


async def test_what_ends_a_connection_comes_after_what_was_written() -> None:
    said: list[Any] = []
    wire = _batched(Wire(said))
    wire.write(b"a")
    wire.write_eof()
    wire.close()
    other = _batched(Wire(said))
    other.write(b"b")
    other.close()
    await asyncio.sleep(0)
    assert said == [b"a", "eof", "close", b"b", "close"]


async def test_an_aborted_or_lost_connection_gets_nothing_and_holds_up_no_other() -> None:
    said: list[Any] = []
    lost, aborted, good = Wire(said), _batched(Wire(said)), _batched(Wire(said))
    _batched(lost).write(b"a")
    aborted.write(b"b")
    aborted.abort()
    good.write(b"c")
    lost.closing = True
    await asyncio.sleep(0)
    assert said == ["abort", b"c"]


async def test_much_is_written_at_once_so_that_flow_control_holds() -> None:
    said: list[Any] = []
    wire = _batched(Wire(said))
    wire.write(b"head")
    wire.write(bytes(MAX_UNSENT_BYTES))
    assert said == [b"head" + bytes(MAX_UNSENT_BYTES)]
    wire.write(b"more")
    wire.pause_reading()
    await asyncio.sleep(0)
    assert said[1:] == ["pause", b"more"]


def test_a_loop_that_ended_before_its_writes_does_not_hold_up_the_next_one() -> None:
    said: list[Any] = []

    async def write(then: float | None) -> None:
        _batched(Wire(said)).write(b"a")
        if then is not None:
            await asyncio.sleep(then)

    asyncio.run(write(None))
    asyncio.run(write(0))
    assert said[-1:] == [b"a"]


async def test_a_connection_that_takes_nothing_holds_up_no_other(caplog: Any) -> None:
    said: list[Any] = []
    wire = Wire(said)
    wire.write = lambda data: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    bad, good = _batched(wire), _batched(Wire(said))
    bad.write(b"a")
    good.write(b"b")
    await asyncio.sleep(0)
    assert said == ["abort", b"b"]
    assert "took no answer" in caplog.text


async def test_nothing_follows_the_end_of_what_is_written() -> None:
    said: list[Any] = []
    wire = _batched(Wire(said))
    wire.write_eof()
    wire.write(b"100 Continue")
    wire.writelines([b"a"])
    await asyncio.sleep(0)
    assert said == ["eof"]
