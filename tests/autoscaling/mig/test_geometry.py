"""What NVIDIA's tables say of A100 and H100, and that placements are real."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.mig.geometry import (
    KINDS,
    MEMORY_SLICES,
    NONE,
    Counts,
    feasible,
    fits,
    free_compute,
    free_memory,
    left_over,
    maximal,
    placed,
    with_one,
)

NAMES = {"1g": 0, "1d": 1, "2g": 2, "3g": 3, "4g": 4, "7g": 5}


def counts(*names: str) -> Counts:
    total = NONE
    for name in names:
        total = with_one(total, NAMES[name])
    return total


def test_there_are_37_multisets_and_12_maximal_ones_without_double_memory():
    plain = [each for each in feasible() if not each[NAMES["1d"]]]
    assert len(plain) == 37
    assert len([each for each in maximal() if not each[NAMES["1d"]]]) == 12


@pytest.mark.parametrize(
    ("name", "most"), [("1g", 7), ("1d", 4), ("2g", 3), ("3g", 2), ("4g", 1), ("7g", 1)]
)
def test_as_many_of_a_kind_fit_as_nvidia_says(name, most):
    assert fits(counts(*[name] * most))
    assert not fits(counts(*[name] * (most + 1)))


def test_two_3g_leave_a_compute_slice_that_nothing_can_use():
    assert free_compute(counts("3g", "3g")) == 1
    assert free_memory(counts("3g", "3g")) == 0
    assert left_over(counts("3g", "3g")) == ()


def test_3g_beside_two_2g_stands_at_4_only():
    places = placed(counts("3g", "2g", "2g"))
    assert places is not None
    assert [(each.kind, each.start) for each in places] == [(3, 4), (2, 0), (2, 2)]


def test_4g_fits_beside_3g():
    places = placed(counts("4g", "3g"))
    assert places is not None
    assert {(each.kind, each.start) for each in places} == {(4, 0), (3, 4)}


def test_seven_1g_leave_a_memory_slice_that_nothing_can_use():
    assert free_memory(counts(*["1g"] * 7)) == 1
    assert counts(*["1g"] * 7) in maximal()


def test_three_2g_leave_room_for_one_of_double_memory():
    assert fits(counts("2g", "2g", "2g", "1d"))
    assert not fits(counts("2g", "2g", "2g", "1g", "1g"))


def test_what_is_left_is_told_largest_first():
    assert left_over(counts("4g", "1g")) == (counts("2g"), counts("1g", "1d"), counts("1g", "1g"))
    assert left_over(counts("4g"))[:2] == (counts("3g"), counts("2g", "1d"))


def test_every_layout_is_found_by_trying_all_starts():
    """Against all sets of placements that do not overlap, which the module never lists."""
    places = [(k, s) for k, kind in enumerate(KINDS) for s in kind.starts]
    found = set()

    def grow(at: int, taken: int, compute: int, total: Counts) -> None:
        found.add(total)
        for n in range(at, len(places)):
            kind, start = places[n]
            bits = ((1 << KINDS[kind].size) - 1) << start
            if not bits & taken and compute + KINDS[kind].compute <= 7:
                grow(n + 1, taken | bits, compute + KINDS[kind].compute, with_one(total, kind))

    grow(0, 0, 0, NONE)
    assert found - {NONE} == set(feasible())


def test_a_smaller_kind_may_stand_wherever_a_larger_one_may():
    for small, large in combinations(KINDS, 2):
        assert set(large.starts) <= set(small.starts)
        assert small.size <= large.size
        assert small.compute <= large.compute
        assert small.cost < large.cost


@given(st.tuples(*(st.integers(0, len(kind.starts) + 1) for kind in KINDS)))
def test_placements_are_the_instances_asked_for_and_never_overlap(wanted):
    places = placed(wanted)
    if places is None:
        assert wanted not in feasible()
        return
    assert tuple(sum(each.kind == k for each in places) for k in range(len(KINDS))) == wanted
    covered = [each for place in places for each in place.covers]
    assert len(covered) == len(set(covered))
    assert all(0 <= each < MEMORY_SLICES for each in covered)
    assert all(place.start in KINDS[place.kind].starts for place in places)
    assert sum(KINDS[place.kind].compute for place in places) <= 7


def test_any_part_of_a_layout_fits_too():
    for layout in maximal():
        for part in product(*(range(n + 1) for n in layout)):
            assert fits(part)


def test_negative_numbers_fit_nowhere():
    assert not fits((-1, 0, 0, 0, 0, 0))
