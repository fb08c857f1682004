"""The margin counts by what a length has had of its fair share; lengths refuse for themselves."""

import pytest

from routers.policies.feasibility import MIN_SHARE, Feasibility, LengthUse, margin_part
from tests.routers.newcomers import ask, came, found

FLOW = (0, "a")


def use(given, refused=0.9):
    return LengthUse(given, refused)


def part(own, *others):
    return margin_part(own, [own, *others])


def test_a_length_that_has_its_share_is_judged_with_all_of_the_margin():
    assert part(use(0.3), use(0.3), use(0.3)) == 1.0
    assert part(use(0.6), use(0.1)) == 1.0


def test_one_that_has_little_of_it_with_none():
    assert part(use(0.1), use(0.3)) == pytest.approx(0.0)
    assert part(use(0.0), use(0.3)) == 0.0


def test_between_them_it_counts_in_proportion():
    own = (1.0 + MIN_SHARE) / 2.0
    assert part(use(own), use(2.0 - own)) == pytest.approx(0.5)


def test_a_length_that_is_not_refused_sets_nobodys_share():
    assert part(use(0.3), use(0.3), use(0.01, refused=0.0)) == 1.0
    assert part(use(0.01, refused=0.0), use(0.3), use(0.3)) == 1.0


def test_alone_or_before_anything_was_given_all_of_it_counts():
    assert part(use(0.0)) == 1.0
    assert part(use(0.0), use(0.0)) == 1.0


def one(edge, now, before_s=9.0):
    return found(
        came(FLOW, now, edge=edge, cost_s=0.01), now, before_s=before_s, competing_weight=1.0
    )


def refused(feasibility, edge, now):
    return ask(feasibility, one(edge, now), now).late_by_s > 0.0


def test_each_length_lets_one_in_against_the_forecast():
    feasibility = Feasibility()
    assert [refused(feasibility, edge, 0.0) for edge in (32, 32, 512, 512)] == [
        False, True, False, True,
    ]  # fmt: skip


def test_what_a_length_would_be_told_is_what_it_is_told():
    feasibility = Feasibility()
    refused(feasibility, 32, 0.0)
    would_be = [feasibility.judge(one(32, 0.1), 0.1) for _ in range(9)]
    assert would_be == 9 * [ask(feasibility, one(32, 0.1), 0.1)]
    assert would_be[0].late_by_s > 0.0


def test_a_length_nobody_asks_for_is_judged_without_waiting_for_one_to_be_let_in():
    feasibility = Feasibility()
    refused(feasibility, 32, 0.0)
    assert feasibility.judge(one(512, 0.1), 0.1).late_by_s > 0.0
    refused(feasibility, 512, 0.1)
    assert feasibility.judge(one(512, 1.2), 1.2).is_probe  # the next is let in
    assert feasibility.judge(one(512, 4.2), 4.2).late_by_s > 0.0  # none has come for long


def test_lengths_that_edges_have_left_behind_are_forgotten():
    feasibility = Feasibility()
    for n in range(100):
        refused(feasibility, n + 1, float(n))
    (account,) = feasibility._accounts.values()
    assert len(account.lengths) <= 17
