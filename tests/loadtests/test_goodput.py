"""Is the highest rate found that a server can keep, and is a lucky or unlucky run outvoted?"""

from itertools import count
from math import inf

import pytest

from loadtests.goodput import Search, search


def cliff(at: float):
    """A server that keeps everything up to a rate and nothing above it."""
    return lambda rate: 1.0 if rate <= at else 0.5


@pytest.mark.parametrize("at", [3.0, 10.0, 11.0, 479.0, 12_345.0])
def test_interval_holds_the_highest_rate_and_is_narrow(at):
    found = search(cliff(at), Search(low=10, within=0.02))
    assert found.holds <= at < found.fails
    assert found.fails <= found.holds * 1.02 + 1e-9


def test_ninety_nine_per_cent_is_enough_and_less_is_not():
    assert search(lambda rate: 0.99, Search(low=1, high=8)).holds == 8
    assert search(lambda rate: 0.9899, Search(low=1, high=8)).holds == 0


def test_no_rate_above_the_highest_is_tried():
    found = search(cliff(inf), Search(low=3, high=100))
    assert max(trial.rate for trial in found.trials) == 100
    assert (found.holds, found.fails) == (100, inf)
    assert str(found) == "at least 100/s"


def test_server_that_never_keeps_it_is_given_up():
    found = search(cliff(0.0), Search(low=10))
    assert found.holds == 0
    assert len(found.trials) < 50


def test_one_unlucky_run_does_not_end_the_search():
    runs = count()

    def measure(rate: float) -> float:
        return 0.0 if next(runs) == 0 else cliff(500)(rate)

    found = search(measure, Search(low=100))
    assert 470 < found.holds <= 500 < found.fails


def test_bounds_have_had_all_their_runs_in_turn():
    found = search(cliff(300), Search(low=100, repeats=5))
    rates = [trial.rate for trial in found.trials]
    assert rates.count(found.holds) == rates.count(found.fails) == 5
    assert rates[-1] != rates[-2]


def test_rate_that_failed_once_is_not_said_to_hold():
    """Between the two lies where runs disagree."""
    seen: dict[float, int] = {}

    def measure(rate: float) -> float:
        seen[rate] = seen.get(rate, 0) + 1
        unlucky = 400 < rate <= 500 and seen[rate] == 3
        return 0.5 if unlucky else cliff(500)(rate)

    found = search(measure, Search(low=100))
    assert found.holds <= 400
    assert 500 < found.fails < 530


@pytest.mark.parametrize("wrong", [{"low": 0}, {"low": 5, "high": 4}, {"low": 1, "repeats": 0}])
def test_search_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="needs"):
        Search(**wrong)
