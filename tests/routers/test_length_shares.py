"""The margin counts by what a length has had of its fair share; lengths refuse for themselves."""

import pytest

from routers.policies.admission.feasibility import Feasibility, QueueAhead
from routers.policies.admission.length_shares import LEAST_SHARE, LengthUse, margin_part

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
    own = (1.0 + LEAST_SHARE) / 2.0
    assert part(use(own), use(2.0 - own)) == pytest.approx(0.5)


def test_a_length_that_is_not_refused_sets_nobodys_share():
    assert part(use(0.3), use(0.3), use(0.01, refused=0.0)) == 1.0
    assert part(use(0.01, refused=0.0), use(0.3), use(0.3)) == 1.0


def test_alone_or_before_anything_was_given_all_of_it_counts():
    assert part(use(0.0)) == 1.0
    assert part(use(0.0), use(0.0)) == 1.0


def ahead(edge, ahead_s):
    return QueueAhead(FLOW, 1.0, ahead_s, 1.0, 0.0, 1.0, edge, 0.01)


def refused(feasibility, edge, now, ahead_s=9.0):
    return feasibility.judge(ahead(edge, ahead_s), now + 0.1, now).late_by_s > 0.0


def test_each_length_lets_one_in_against_the_forecast():
    feasibility = Feasibility()
    assert [refused(feasibility, edge, 0.0) for edge in (32, 32, 512, 512)] == [
        False, True, False, True,
    ]  # fmt: skip


def test_what_a_length_would_be_told_is_what_it_is_told_and_counts_nothing():
    feasibility = Feasibility()
    refused(feasibility, 32, 0.0)
    shed = feasibility.verdicts.shed
    would_be = feasibility.late_by_s(ahead(32, 9.0), 0.2, 0.1)
    assert feasibility.verdicts.shed == shed
    assert would_be == feasibility.judge(ahead(32, 9.0), 0.2, 0.1).late_by_s > 0.0


def test_a_length_nobody_asks_for_is_judged_without_waiting_for_one_to_be_let_in():
    feasibility = Feasibility()
    refused(feasibility, 32, 0.0)
    assert feasibility.late_by_s(ahead(512, 9.0), 0.2, 0.1) > 0.0
    refused(feasibility, 512, 0.1)
    assert feasibility.late_by_s(ahead(512, 9.0), 1.3, 1.2) == 0.0  # the next is let in
    assert feasibility.late_by_s(ahead(512, 9.0), 4.3, 4.2) > 0.0  # none has come for long


def test_lengths_that_edges_have_left_behind_are_forgotten():
    feasibility = Feasibility()
    for n in range(100):
        refused(feasibility, n + 1, float(n))
    (account,) = feasibility._accounts.values()
    assert len(account.lengths) <= 17
