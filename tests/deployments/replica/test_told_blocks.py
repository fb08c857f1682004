"""What one gateway is told of the blocks that an engine holds, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import Mock

import pytest

from deployments.contract.channel.stream_messages import BlocksMessage, unpacked
from deployments.replica import told_blocks
from deployments.replica.block_index import BlockIndex
from deployments.replica.told_blocks import COALESCE_S, MAX_TOLD, ToldBlocks


class Stand:
    """An index, and a gateway that takes in what it is told of it."""

    def __init__(self, *, known: bool = True) -> None:
        self.index = BlockIndex()
        if known:
            self.index.replace(())
        self.woken = 0
        self.now = 0.0
        self.told = ToldBlocks(self.index, self._wake)
        self.held: set[int] = set()
        self.last: BlocksMessage | None = None

    def _wake(self) -> None:
        self.woken += 1

    def engine_reads(self, *blocks: int) -> None:
        self.index.locate(self.index.ask(blocks, 16 * len(blocks)), blocks, 16 * len(blocks))
        self.index.update(blocks, ())

    def take(self, *, ends: bool = False, after_s: float = 0.0) -> BlocksMessage | None:
        self.now += after_s
        message = self.told.take(self.now, ends=ends)
        if message is not None:
            number = 0 if self.last is None else self.last.number
            assert message.number == number + 1
            self.held = set() if message.whole else self.held
            self.held |= set(unpacked(message.stored))
            self.held -= set(unpacked(message.removed))
            self.last = message
        return message


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    made = Stand()
    yield made
    made.told.close()


async def test_what_is_told_first_is_everything(stand: Stand) -> None:
    message = stand.take()
    assert message == BlocksMessage(1, whole=True)
    assert stand.take(after_s=9.0) is None


async def test_changes_are_gathered_and_only_the_last_of_each_is_told(stand: Stand) -> None:
    stand.take()
    stand.engine_reads(1, 2, 3)
    assert stand.take() is None
    stand.index.update((), (2,))
    message = stand.take(after_s=COALESCE_S)
    assert message is not None
    assert (set(unpacked(message.stored)), set(unpacked(message.removed))) == ({1, 3}, {2})
    assert not message.whole
    assert not message.partial


async def test_with_the_end_of_a_request_all_is_told_at_once(stand: Stand) -> None:
    stand.take()
    stand.engine_reads(1)
    assert stand.take(ends=True) is not None
    assert stand.held == {1}


async def test_changes_that_no_message_brings_wake_whoever_sends(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told_blocks, "COALESCE_S", 0.002)
    stand.take()
    stand.engine_reads(1)
    assert stand.take(ends=True) is not None
    stand.engine_reads(2)
    await asyncio.sleep(0.02)
    woken = stand.woken
    assert woken
    assert stand.take() is None  # it was woken for what an end has brought
    await asyncio.sleep(0.02)
    assert stand.woken > woken
    assert stand.take(after_s=1.0) is not None
    assert stand.held == {1, 2}


async def test_much_is_told_in_parts_of_which_the_last_says_that_it_is_all(stand: Stand) -> None:
    stand.engine_reads(*range(2 * MAX_TOLD + 1))
    other = ToldBlocks(stand.index, lambda: None)
    parts = [other.take(float(at), ends=False) for at in range(4)]
    sizes = [len(unpacked(part.stored)) for part in parts if part is not None]
    assert sizes == [MAX_TOLD, MAX_TOLD, 1]
    assert [part.partial for part in parts if part is not None] == [True, True, False]
    assert [part.whole for part in parts if part is not None] == [True, False, False]
    other.close()


async def test_later_changes_in_several_messages_are_no_new_beginning(stand: Stand) -> None:
    stand.take()
    stand.engine_reads(*range(MAX_TOLD + 5))
    parts = [stand.take(after_s=1.0), stand.take(after_s=1.0)]
    assert [part.partial for part in parts if part is not None] == [False, False]
    assert len(stand.held) == MAX_TOLD + 5


async def test_a_gateway_that_asks_is_told_everything_again(stand: Stand) -> None:
    stand.engine_reads(1, 2)
    stand.take()
    stand.held, stand.last = set(), BlocksMessage(1)
    stand.told.begins_anew()
    message = stand.take()
    assert message is not None
    assert message.whole
    assert stand.held == {1, 2}


async def test_what_nobody_takes_is_bounded_by_everything(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told_blocks, "MAX_HASHES", 50)
    stand.take()
    for start in range(0, 1000, 10):
        stand.engine_reads(*range(start, start + 10))
        stand.index.update((), range(start, start + 10))
    assert len(stand.told._waiting) <= 50
    stand.engine_reads(7)
    while stand.take(after_s=1.0) is not None:
        pass
    assert stand.held == {7}


async def test_a_silent_gateway_costs_no_look_at_everything_for_each_change(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told_blocks, "MAX_HASHES", 50)
    stand.index = BlockIndex(50)
    stand.index.replace(())
    stand.engine_reads(*range(50))
    looked = Mock(wraps=stand.index.held)
    monkeypatch.setattr(stand.index, "held", looked)
    stand.told = ToldBlocks(stand.index, lambda: None)
    for each in range(50, 150):
        stand.engine_reads(each)
    assert looked.call_count == 1
    assert len(stand.told._waiting) == 50
    assert stand.take() is not None
    assert stand.held == set(range(100, 150))


async def test_an_engine_that_does_not_tell_is_not_spoken_of_until_it_does() -> None:
    stand = Stand(known=False)
    assert stand.take(ends=True, after_s=9.0) is None
    stand.index.replace((1,))
    assert stand.take(ends=True) == BlocksMessage(1, whole=True)
    stand.told.close()


async def test_while_the_engine_has_lost_count_gateways_are_told_that_it_is_not_all(
    stand: Stand,
) -> None:
    stand.engine_reads(1)
    stand.take()
    stand.index.lose()
    message = stand.take()
    assert message is not None
    assert (message.whole, message.partial) == (True, True)
    assert stand.take(ends=True, after_s=9.0) is None
    stand.index.replace(())
    message = stand.take()
    assert message is not None
    assert (message.whole, message.partial) == (True, False)


async def test_whoever_has_left_is_not_told() -> None:
    stand = Stand()
    stand.take()
    stand.told.close()
    stand.engine_reads(1)
    assert stand.take(ends=True, after_s=9.0) is None
