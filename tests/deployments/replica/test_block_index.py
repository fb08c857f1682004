"""The blocks that an engine's cache holds, by the names that gateways know them by."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from time import thread_time

import pytest

from deployments.replica.block_index import BlockIndex


class Follower:
    """Knows what it was told."""

    def __init__(self, index: BlockIndex) -> None:
        self._index = index
        self.held = set(index.held())
        self.beginnings = 0
        index.follow(self)

    def changed(self, held: Mapping[int, bool]) -> None:
        self.held |= {each for each, is_held in held.items() if is_held}
        self.held -= {each for each, is_held in held.items() if not is_held}

    def begins_anew(self) -> None:
        self.beginnings += 1
        self.held = set(self._index.held())


@pytest.fixture
def index() -> BlockIndex:
    made = BlockIndex()
    made.replace(())
    return made


def test_a_hash_is_held_while_its_block_is(index: BlockIndex) -> None:
    follower = Follower(index)
    index.locate(index.ask((71, 72, 73), 48), (1, 2, 3), 48)
    assert follower.held == set()
    index.update((1, 2), ())
    assert follower.held == {71, 72} == set(index.held())
    index.update((3,), (2,))
    assert follower.held == {71, 73}


def test_what_is_held_already_is_told_when_a_request_names_it(index: BlockIndex) -> None:
    follower = Follower(index)
    index.update((1, 2), ())
    index.locate(index.ask((71, 72, 73), 48), (1, 2, 3), 48)
    assert follower.held == {71, 72}


@pytest.mark.parametrize(
    ("gateways", "engines", "places"),
    [
        (64, 64, [1, 2, 3, 4]),
        (64, 96, [1, 3, 4, 6]),  # a template has put tokens in
        (64, 32, [1, 1, 1, 2]),  # the gateway counts four bytes as a token
        (64, 20, [1, 1, 1, 1]),
        (0, 64, [1, 2, 3, 4]),  # a gateway that does not say how many
    ],
)
def test_hashes_stand_for_the_same_share_of_the_prompt(
    index: BlockIndex, gateways: int, engines: int, places: list[int]
) -> None:
    blocks = range(1, engines // 16 + 1)
    index.update(blocks, ())
    index.locate(index.ask((71, 72, 73, 74), gateways), list(blocks), engines)
    for block in blocks:
        index.update((), (block,))
        left = {hash_ for hash_, at in zip((71, 72, 73, 74), places, strict=True) if at > block}
        assert set(index.held()) == left


def test_the_newest_request_says_what_a_hash_stands_for(index: BlockIndex) -> None:
    index.update((1, 2, 8, 9), ())
    index.locate(index.ask((71, 72), 32), (1, 2), 32)
    index.locate(index.ask((71, 72), 32), (8, 9), 32)
    index.update((), (1, 2))
    assert set(index.held()) == {71, 72}
    index.update((), (8, 9))
    assert set(index.held()) == set()


def test_a_request_that_was_never_read_leaves_nothing(index: BlockIndex) -> None:
    index.update((1,), ())
    number = index.ask((71, 72), 32)
    index.locate(number, (1, 2), 32)
    index.done(number)
    assert len(index) == 1
    index.update((2,), ())
    assert set(index.held()) == {71}


def test_a_request_that_brings_no_hashes_is_not_kept(index: BlockIndex) -> None:
    assert index.ask((), 100) == 0
    index.locate(0, (1, 2), 32)
    index.done(0)
    assert len(index) == 0


def test_a_request_that_has_ended_is_not_located(index: BlockIndex) -> None:
    number = index.ask((71,), 16)
    index.done(number)
    index.locate(number, (1,), 16)
    assert len(index) == 0


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 1000])
def test_no_more_hashes_are_kept_than_the_bound(count: int) -> None:
    index = BlockIndex(most=10)
    index.replace(range(count))
    follower = Follower(index)
    for each in range(count):
        index.locate(index.ask((1000 + each,), 16), (each,), 16)
    assert len(index) == min(count, 10)
    assert follower.held == set(range(1000 + max(0, count - 10), 1000 + count))


def test_what_is_lost_is_empty_until_it_is_replaced(index: BlockIndex) -> None:
    follower = Follower(index)
    index.update((1, 2), ())
    index.locate(index.ask((71, 72), 32), (1, 2), 32)
    index.lose()
    assert (index.known, len(index), follower.held) == (False, 0, set())
    index.locate(index.ask((71, 72), 32), (1, 2), 32)  # nobody could tell whether it is held
    assert len(index) == 0
    index.replace((1, 5))
    index.locate(index.ask((71, 72), 32), (1, 2), 32)
    assert follower.held == {71}
    assert follower.beginnings == 2


def test_followers_know_what_is_held_whatever_happens(index: BlockIndex) -> None:
    """Against a model that keeps all that every request has said."""
    rng = Random(1)
    follower, held, said, running = Follower(index), set[int](), dict[int, int](), list[int]()
    for _ in range(3000):
        act = rng.randrange(4)
        if act == 0:
            start = rng.randrange(0, 200, 4)
            blocks = list(range(start, start + 4))
            number = index.ask(tuple(1000 + block for block in blocks), 64)
            index.locate(number, blocks, 64)
            said |= {1000 + block: block for block in blocks}
            running.append(number)
        elif act == 1 and running:
            index.done(running.pop(rng.randrange(len(running))))
        else:
            stored = rng.sample(range(204), 3)
            removed = rng.sample(sorted(held), min(len(held), 3))
            index.update(stored, removed)
            held = (held | set(stored)) - set(removed)
        assert follower.held == set(index.held())
        assert follower.held <= {each for each, block in said.items() if block in held}


def test_a_block_that_all_prompts_begin_with_costs_no_more_than_others() -> None:
    """A chat template's first block: each prompt's first hash stands for it."""

    def took_s(blocks: int) -> float:
        index = BlockIndex(10_000)
        index.replace(())
        began = thread_time()
        for each in range(20_000):
            index.locate(index.ask((each,), 16), (each % blocks,), 16)
        assert len(index) == 10_000
        return thread_time() - began

    # The least of some: what other tests have left may be collected meanwhile.
    one, many = (min(took_s(blocks) for _ in range(3)) for blocks in (1, 10_000))
    assert one < 10 * many
