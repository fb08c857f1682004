"""What other gateways take of the replicas, as their reports say."""

import pytest

from routers.estimates.averages import PeerLoad


def test_a_first_report_says_nothing():
    load = PeerLoad()
    load.report("a", 500.0, 1000.0)
    assert load.rate == 0.0


@pytest.mark.parametrize("every_s", [0.01, 0.5, 3.0, 60.0])
def test_the_rate_is_the_same_however_often_it_is_told(every_s):
    load = PeerLoad()
    for number in range(round(60 / every_s) + 1):
        load.report("a", 0.4 * every_s, number * every_s)
    assert load.rate == pytest.approx(0.4, rel=0.01)


def test_work_that_comes_in_lumps_is_averaged():
    load = PeerLoad()
    for number in range(400):
        load.report("a", 0.5 if number % 10 == 0 else 0.0, 0.1 * number)
    assert load.rate == pytest.approx(0.5, rel=0.2)


def test_an_hour_of_silence_counts_as_what_it_was():
    load = PeerLoad()
    load.report("a", 0.0, 0.0)
    load.report("a", 360.0, 3600.0)
    assert load.rate == pytest.approx(0.1)


def test_several_reports_of_one_moment_are_added():
    load = PeerLoad()
    load.report("a", 0.0, 0.0)
    for number in range(1, 61):
        load.report("a", 0.3, float(number))
        load.report("a", 0.2, float(number))
        load.report("a", 0.0, float(number))
    assert load.rate == pytest.approx(0.5, rel=0.1)


def test_replicas_are_added_up_and_forgotten_with_what_they_did():
    load = PeerLoad()
    for number in range(100):
        load.report("a", 0.25, float(number))
        load.report("b", 0.5, float(number))
    assert load.rate == pytest.approx(0.75, rel=0.01)
    load.forget("b")
    assert load.rate == pytest.approx(0.25, rel=0.01)
    load.forget("b")
    load.forget("a")
    assert load.rate == pytest.approx(0.0, abs=1e-12)


def test_a_replica_counts_as_no_more_than_it_can_do():
    load = PeerLoad()
    load.report("a", 0.0, 0.0, most=1.0)
    load.report("a", 8.0, 0.5, most=1.0)  # all of what has begun, told at once
    assert load.rate == 1.0
    load.report("a", 0.0, 60.0, most=1.0)
    assert load.rate == pytest.approx(0.0, abs=0.01)
