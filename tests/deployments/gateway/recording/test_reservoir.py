"""Of every length as many rows, each as likely as another, within the bounds."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from deployments.gateway.recording.recorder import Reservoir
from deployments.gateway.rows import RowColumn, Rows


def rows(*lengths: int, first: int = 0, name: str = "ids") -> Rows:
    """Row r holds `first + r` over and over."""
    arrays = [np.full(length, first + r, np.int64) for r, length in enumerate(lengths)]
    column = RowColumn("INT64", arrays, [(length,) for length in lengths])
    return Rows(len(lengths), lengths, {name: column})


def reservoir(max_rows: int = 10, max_bytes: int = 1 << 20, seed: int = 0) -> Reservoir:
    return Reservoir((8, 64), max_rows, max_bytes, random.Random(seed))


def test_each_bucket_has_its_share_of_the_room():
    kept = reservoir()
    for number in range(100):
        kept.offer(rows(4, 60, first=number))
    lengths = Counter(len(row) for row in kept.columns()["ids"])
    assert lengths == {4: 5, 60: 5}
    assert kept.seen == 200


def test_what_is_longer_than_the_last_edge_is_kept_with_the_longest():
    kept = reservoir()
    assert kept.offer(rows(1000))
    assert len(kept.columns()["ids"][0]) == 1000


def test_every_row_that_came_is_as_likely_to_be_kept():
    found: Counter[int] = Counter()
    for seed in range(400):
        kept = reservoir(seed=seed)
        for number in range(20):
            kept.offer(rows(1, first=number))
        found.update(int(row[0]) for row in kept.columns()["ids"])
    assert set(found) == set(range(20))
    assert max(found.values()) < 2 * min(found.values())


def test_bytes_are_bounded_also_when_rows_replace_others():
    kept = reservoir(max_rows=100, max_bytes=1000)
    for number in range(300):
        kept.offer(rows(1 + number % 64, first=number))
    assert 800 < sum(row.nbytes for row in kept.columns()["ids"]) <= 1000


def test_a_kept_row_is_a_copy_in_its_own_shape():
    body = np.arange(6, dtype=np.float32)
    kept = reservoir()
    kept.offer(Rows(1, (1,), {"x": RowColumn("FP32", [body], [(2, 3)])}))
    body[:] = 0
    assert kept.columns()["x"][0].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_rows_of_other_inputs_than_most_are_left_out_of_the_file():
    kept = reservoir()
    kept.offer(rows(1, 2))
    kept.offer(rows(3, name="other"))
    assert list(kept.columns()) == ["ids"]


def test_nothing_came_and_nothing_is_kept():
    assert reservoir().columns() == {}


@pytest.mark.parametrize("max_rows", [1, 2, 3])
def test_there_is_room_for_one_of_each_bucket_at_least(max_rows):
    kept = reservoir(max_rows=max_rows)
    kept.offer(rows(1, 2, 60, 61))
    assert sorted(len(row) > 8 for row in kept.columns()["ids"]) == [False, True]
