"""Hashes of prompts, and which replicas have read them."""

from __future__ import annotations

import subprocess
import sys
from random import Random
from time import perf_counter

import pytest

from routers.api.events import BlocksHeld
from routers.estimates.prefix_tree import PrefixTree, blocks_of
from runtimes.synthetic.engine import EngineShape


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_only_whole_blocks_have_hashes(tokens: int, blocks: int) -> None:
    assert len(blocks_of(range(tokens), 4)) == blocks


def test_prompts_share_hashes_up_to_where_they_differ() -> None:
    one, other = list(range(64)), list(range(64))
    other[20] = 999
    alike = [a == b for a, b in zip(blocks_of(one, 8), blocks_of(other, 8), strict=True)]
    assert alike == [True, True] + [False] * 6


def test_a_block_in_another_place_is_another_block() -> None:
    first, second = blocks_of([1, 2, 1, 2], 2)
    assert first != second
    assert blocks_of([1, 2], 2) == (first,)


def test_engines_without_shared_blocks_have_no_hashes() -> None:
    assert blocks_of(range(100), 0) == ()


def test_hashes_are_the_same_in_every_process() -> None:
    script = "from routers.estimates.prefix_tree import blocks_of; print(blocks_of(range(40), 16))"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str(blocks_of(range(40), 16))


def test_thirty_thousand_tokens_take_milliseconds() -> None:
    tokens = [n % 32_000 for n in range(30_000)]
    best = min(_seconds(tokens) for _ in range(5))
    assert best < 0.02


def _seconds(tokens: list[int]) -> float:
    start = perf_counter()
    assert len(blocks_of(tokens, 16)) == 1875
    return perf_counter() - start


@pytest.mark.parametrize("shared", range(6))
def test_prompts_match_as_far_as_their_hashes(shared: int) -> None:
    tree = PrefixTree(1000)
    tree.read("a", (1, 2, 3, 4, 5), 100)
    blocks = (*(1, 2, 3, 4, 5)[:shared], 9, 8, 7)
    assert tree.match("a", blocks) == shared
    assert tree.matches(blocks) == ({"a": shared} if shared else {})


def test_replicas_know_what_they_read_themselves() -> None:
    tree = PrefixTree(1000)
    tree.read("a", (1, 2), 100)
    tree.read("b", (1, 2, 3), 100)
    assert tree.matches((1, 2, 3, 4)) == {"a": 2, "b": 3}


def test_ends_of_prompts_are_forgotten_before_their_starts() -> None:
    tree = PrefixTree(1000)
    tree.read("a", (1, 2, 3, 4), 4)
    tree.read("a", (1, 2, 5, 6), 4)
    assert tree.match("a", (1, 2, 5, 6)) == 4
    assert tree.match("a", (1, 2, 3, 4)) == 2


def test_prompts_used_least_recently_are_forgotten_first() -> None:
    tree = PrefixTree(1000)
    tree.read("a", (1, 2), 4)
    tree.read("a", (3, 4), 4)
    tree.read("a", (1, 2), 4)
    tree.read("a", (5, 6), 4)
    assert tree.matches((3, 4)) == {}
    assert tree.matches((1, 2)) == {"a": 2}


def test_prompt_longer_than_the_cache_keeps_its_start() -> None:
    tree = PrefixTree(1000)
    tree.read("a", tuple(range(10)), 4)
    assert tree.match("a", tuple(range(10))) == 4


def test_all_replicas_together_remember_no_more_than_the_bound() -> None:
    tree = PrefixTree(50)
    for n in range(100):
        tree.read(f"r{n % 4}", tuple(range(n * 10, n * 10 + 10)), 40)
        assert len(tree) <= 50


def test_replica_that_is_gone_is_forgotten() -> None:
    tree = PrefixTree(1000)
    tree.read("a", (1, 2), 100)
    tree.forget("a")
    tree.forget("never there")
    assert tree.matches((1, 2)) == {}
    assert tree.replicas == ()


def test_prompt_without_whole_blocks_matches_nothing() -> None:
    tree = PrefixTree(1000)
    tree.read("a", (), 100)
    assert tree.matches(()) == {}


# ---- replicas that tell what they hold ----------------------------------------------------------


def told(**more: object) -> BlocksHeld:
    return BlocksHeld("a", **more)  # type: ignore[arg-type]


def test_what_a_replica_tells_takes_the_place_of_the_estimate() -> None:
    tree = PrefixTree(1000)
    tree.read("a", (1, 2, 3), 100)
    tree.told(told(stored=(1, 7), whole=True))
    assert tree.is_told("a")
    assert (tree.match("a", (1, 2, 3)), tree.match("a", (7,)), len(tree)) == (1, 1, 2)
    tree.told(told(stored=(2,), removed=(7,)))
    assert (tree.match("a", (1, 2, 3)), tree.match("a", (7,))) == (2, 0)


def test_what_is_being_read_counts_until_it_has_ended() -> None:
    tree = PrefixTree(1000)
    tree.told(told(whole=True))
    tree.read("a", (1, 2), 100)
    tree.read("a", (1, 3), 100)
    assert tree.match("a", (1, 2)) == 2
    tree.done("a", (1, 2))
    assert (tree.match("a", (1, 2)), tree.match("a", (1, 3))) == (1, 2)
    tree.done("a", (1, 3))
    assert tree.matches((1, 3)) == {}


def test_what_was_sent_before_a_replica_told_is_no_debt() -> None:
    tree = PrefixTree(1000)
    tree.read("a", (1, 2), 100)
    tree.told(told(stored=(1,), whole=True))
    tree.read("a", (1, 2), 100)
    tree.done("a", (1, 2))
    tree.done("a", (1, 2))
    assert tree.match("a", (1, 2)) == 1


def test_until_all_was_told_again_what_was_known_is_the_estimate() -> None:
    tree = PrefixTree(1000)
    tree.told(told(stored=(1, 2), whole=True))
    tree.told(told(stored=(5,), whole=True, partial=True))
    assert not tree.is_told("a")
    assert tree.match("a", (1, 2)) == 2
    tree.read("a", (3,), 100)
    assert (tree.match("a", (3,)), tree.match("a", (5,))) == (1, 0)
    tree.told(told(stored=(6,)))
    assert tree.is_told("a")
    assert (tree.match("a", (1, 2)), tree.match("a", (5,)), tree.match("a", (3,))) == (0, 1, 1)
    tree.done("a", (3,))
    assert tree.matches((3,)) == {}


def test_replicas_that_tell_remember_no_more_than_the_bound_either() -> None:
    tree = PrefixTree(10)
    tree.told(told(stored=tuple(range(8)), whole=True))
    tree.told(BlocksHeld("b", tuple(range(8)), whole=True))
    assert len(tree) == 10
    tree.told(told(removed=tuple(range(8))))
    tree.told(BlocksHeld("b", (8, 9)))
    assert len(tree) == 7
    assert tree.told_replicas == 2


def test_the_bound_is_shared_by_all_replicas_that_tell() -> None:
    tree = PrefixTree(60)
    for name in "abc":
        tree.told(BlocksHeld(name, tuple(range(40)), whole=True))
    tree.told(BlocksHeld("d", tuple(range(5)), whole=True))
    assert tree.matches(tuple(range(40))).keys() == set("abcd")
    assert [tree.match(name, tuple(range(5))) for name in "abcd"] == [5, 5, 5, 5]
    assert len(tree) == 60


def test_beyond_the_bound_what_was_used_last_is_known_longest() -> None:
    tree = PrefixTree(8)
    tree.told(told(stored=(1, 2, 3, 4), whole=True))
    tree.told(told(stored=(5, 6, 7, 8)))
    tree.read("a", (1, 2, 3), 100)
    tree.done("a", (1, 2, 3))
    tree.told(told(stored=(9, 10, 11)))
    assert (tree.match("a", (1, 2, 3)), tree.match("a", (9, 10, 11))) == (3, 3)
    assert len(tree) == 8


def test_changes_of_what_is_not_known_are_not_taken_for_all() -> None:
    """A replica that is listed again, on a connection that told its beginning before."""
    tree = PrefixTree(10)
    tree.told(told(stored=(1, 2), whole=True))
    tree.forget("a")
    tree.read("a", (1, 2), 100)
    tree.told(told(stored=(5,)))
    assert not tree.is_told("a")
    assert tree.match("a", (1, 2)) == 2


def test_a_replica_that_is_gone_has_told_nothing() -> None:
    tree = PrefixTree(10)
    tree.told(told(stored=(1,), whole=True))
    tree.forget("a")
    assert (tree.matches((1,)), tree.is_told("a"), len(tree)) == ({}, False, 0)


def test_the_tree_is_what_the_engine_holds_whatever_it_drops() -> None:
    rng = Random(1)
    engine = EngineShape(0.0, 0.0, 0.0, cache_tokens=160, block_tokens=16).engine()
    tree = PrefixTree(1000)
    tree.told(told(whole=True))
    engine.tell_blocks(lambda *both: tree.told(told(stored=tuple(both[0]), removed=tuple(both[1]))))
    for _ in range(300):
        start = rng.randrange(6) * 100
        blocks = (*range(start, start + 3), *range(start + 50, start + rng.randrange(50, 54)))
        engine.add(None, 16 * len(blocks) + 1, 1, blocks)
        engine.begin_step()
        engine.end_step()
        for first in range(0, 600, 100):
            probe = (*range(first, first + 3), *range(first + 50, first + 54))
            assert tree.match("a", probe) == engine.known(probe)
