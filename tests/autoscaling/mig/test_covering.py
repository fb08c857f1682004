from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from autoscaling.mig.geometry import NONE, fits, maximal, plus
from autoscaling.mig.packing import best_fit, cover, lower_bound

COUNTS = st.tuples(*(st.integers(0, most) for most in (14, 6, 6, 5, 4, 2)))


def total(gpus):
    counts = NONE
    for gpu in gpus:
        counts = plus(counts, gpu)
    return counts


@given(COUNTS)
def test_every_instance_has_a_place_and_every_gpu_can_hold_its_own(counts):
    found = cover(counts)
    assert total(found.gpus) == counts
    assert all(fits(gpu) for gpu in found.gpus)
    assert lower_bound(counts) <= found.at_least <= len(found.gpus) <= len(best_fit(counts))


@given(COUNTS)
def test_best_fit_alone_is_a_possible_placement(counts):
    gpus = best_fit(counts)
    assert total(gpus) == counts
    assert all(fits(gpu) for gpu in gpus)


@given(st.lists(st.sampled_from(maximal()), max_size=6))
def test_what_some_gpus_hold_never_needs_more_of_them(layouts):
    assert lower_bound(total(layouts)) <= len(layouts)
    assert len(cover(total(layouts)).gpus) <= len(layouts)


def test_nothing_needs_no_gpu():
    assert cover(NONE).gpus == ()
    assert cover(NONE).proved


def test_the_search_finds_what_best_fit_misses():
    counts = (2, 0, 3, 2, 0, 0)
    assert len(best_fit(counts)) == 3
    assert len(cover(counts).gpus) == 2
    assert cover(counts).proved


def test_a_search_that_is_given_up_says_so_and_keeps_best_fit():
    counts = (2, 0, 3, 2, 0, 0)
    given_up = cover(counts, 1)
    assert given_up.gpus == best_fit(counts)
    assert given_up.at_least == 2
    assert not given_up.proved


def test_hundreds_of_instances_are_covered_and_proved():
    rng = random.Random(7)
    for _ in range(20):
        counts = tuple(rng.randint(0, 60) for _ in range(6))
        assert cover(counts).proved
