"""Prompts share as many hashes as whole blocks from their start."""

from __future__ import annotations

import subprocess
import sys
from time import perf_counter

import pytest

from routers.streams.prefix_tree import blocks_of


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
    script = "from routers.streams.prefix_tree import blocks_of; print(blocks_of(range(40), 16))"
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
