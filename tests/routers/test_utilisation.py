"""How busy the replicas have lately been."""

import pytest

from routers.averages import Utilisation


def test_it_starts_idle():
    assert Utilisation().share == 0.0


def test_a_constant_share_is_approached_within_a_few_seconds():
    used = Utilisation()
    for step in range(51):
        used.advance(0.6, step * 0.1)
    assert used.share == pytest.approx(0.6, abs=0.01)


def test_how_often_it_is_told_does_not_matter():
    often, seldom = Utilisation(), Utilisation()
    for step in range(101):
        often.advance(0.8, step * 0.01)
    seldom.advance(0.8, 0.0)
    seldom.advance(0.8, 1.0)
    assert often.share == pytest.approx(seldom.share)


def test_two_steps_at_one_time_count_once():
    used = Utilisation()
    used.advance(1.0, 0.0)
    used.advance(1.0, 1.0)
    before = used.share
    used.advance(0.0, 1.0)
    assert used.share == before


def test_work_served_for_others_counts_by_replica_and_fades():
    used = Utilisation()
    used.advance(0.0, 0.0)
    used.served_elsewhere(0.4, replicas=4)
    assert used.share == pytest.approx(0.1)
    used.advance(0.0, 10.0)
    assert used.share < 0.001


def test_it_never_exceeds_one():
    used = Utilisation()
    used.served_elsewhere(100.0, replicas=1)
    assert used.share == 1.0
