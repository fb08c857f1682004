"""Are the mix and the arrivals what the figures say they are, and the same for the same seed?"""

import json
import random

import pytest

from loadtests.traffic.workload import (
    RAGGED_MIX,
    infer_body,
    poisson_times,
    ragged_lengths,
    token_ids,
)


def test_ragged_mix_keeps_its_shares_and_bands():
    lengths = ragged_lengths(20_000, random.Random(1))
    for band in RAGGED_MIX:
        share = sum(band.low <= length <= band.high for length in lengths) / len(lengths)
        assert share == pytest.approx(band.share, abs=0.01)
    assert {min(lengths), max(lengths)} == {8, 512}


def test_same_seed_gives_the_same_workload():
    first, second = (
        (ragged_lengths(50, rng), list(poisson_times(100, 1, rng)))
        for rng in (random.Random(7), random.Random(7))
    )
    assert first == second


def test_poisson_arrivals_ascend_within_the_time_at_their_rate():
    times = list(poisson_times(1000, 5, random.Random(2)))
    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] < 5
    assert len(times) == pytest.approx(5000, rel=0.05)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 512])
def test_token_ids_have_the_length_asked_for(length):
    ids = token_ids(length, random.Random(3))
    assert len(ids) == length
    assert ids[:1] == [101][:length]
    assert all(1000 <= token < 29999 for token in ids[1:-1])


def test_infer_body_is_one_row():
    tensor = json.loads(infer_body("ids", [1, 2, 3]))["inputs"][0]
    assert tensor == {"name": "ids", "shape": [1, 3], "datatype": "INT64", "data": [1, 2, 3]}
