"""A replica is known to hold the starts of prompts that it read last."""

from __future__ import annotations

import pytest

from routers.streams.prefix_tree import PrefixTree


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
