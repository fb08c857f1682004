"""Which queues stand, and what is shed of them."""

from routers.api.settings import CodelParameters, Mode
from routers.policies.admission.controllers import Codel

A, B = (0, "a"), (0, "b")
ENFORCE = CodelParameters(Mode.ENFORCE, target_s=0.02, interval_s=0.5)


def feed(codel, wait_s, since, until, flow=A, every_s=0.01):
    """The share of requests shed while all wait so long."""
    count = round((until - since) / every_s)
    return sum(codel.sheds(flow, wait_s, since + n * every_s) for n in range(count)) / count


def test_short_waits_are_never_shed():
    assert feed(Codel(ENFORCE), 0.019, 0.0, 5.0) == 0.0


def test_queue_stands_after_an_interval_without_a_short_wait():
    codel = Codel(ENFORCE)
    assert feed(codel, 0.1, 0.0, 0.5) == 0.0
    assert feed(codel, 0.1, 0.52, 3.0) > 0.95
    assert codel.standing() == [A]


def test_one_short_wait_in_an_interval_means_it_does_not_stand():
    codel = Codel(ENFORCE)
    for n in range(400):
        assert not codel.sheds(A, 0.01 if n % 40 == 7 else 0.2, 0.01 * n)


def test_wait_up_to_twice_the_target_is_not_shed_while_it_stands():
    codel = Codel(ENFORCE)
    feed(codel, 0.1, 0.0, 0.6)
    assert not codel.sheds(A, 0.04, 0.61)
    assert codel.sheds(A, 0.041, 0.62)


def test_first_of_an_interval_is_not_shed():
    codel = Codel(ENFORCE)
    feed(codel, 0.1, 0.0, 1.0)
    assert not codel.sheds(A, 0.1, 1.03)
    assert codel.sheds(A, 0.1, 1.04)


def test_drained_queue_stands_no_more():
    codel = Codel(ENFORCE)
    feed(codel, 0.1, 0.0, 2.0)
    feed(codel, 0.001, 2.0, 3.1)
    assert codel.standing() == []
    assert not codel.sheds(A, 0.1, 3.1)


def test_pause_is_forgotten():
    codel = Codel(ENFORCE)
    feed(codel, 0.1, 0.0, 2.0)
    assert feed(codel, 0.1, 60.0, 60.5) == 0.0


def test_flows_are_watched_apart():
    codel = Codel(ENFORCE)
    feed(codel, 0.1, 0.0, 2.0, flow=A)
    assert feed(codel, 0.001, 2.0, 2.3, flow=B) == 0.0
    assert feed(codel, 0.1, 2.3, 2.4, flow=A) > 0.8
    assert feed(codel, 0.1, 2.3, 2.4, flow=B) == 0.0


def test_observing_sheds_nothing_and_counts():
    codel = Codel(CodelParameters(Mode.OBSERVE))
    assert feed(codel, 1.0, 0.0, 3.0) == 0.0
    assert codel.verdicts.would_shed > 200


def test_switched_off_it_watches_nothing():
    codel = Codel(CodelParameters(Mode.OFF))
    assert feed(codel, 1.0, 0.0, 3.0) == 0.0
    assert codel.standing() == []


def test_frozen_queue_goes_on_as_found():
    codel = Codel(ENFORCE)
    feed(codel, 0.1, 0.0, 2.0)
    codel.tune(ENFORCE, frozen=True)
    assert feed(codel, 0.001, 2.0, 4.0) == 0.0
    assert codel.standing() == [A]
    assert codel.sheds(A, 0.1, 9.0)
