"""Which queues stand, and what is shed of them."""

from routers.api.settings import AdmissionParameters, CodelParameters, Mode
from routers.policies.admission.codel import Codel
from tests.routers.newcomers import came, tuned

A, B = (0, "a"), (0, "b")
ENFORCE = CodelParameters(Mode.ENFORCE, target_s=0.02, interval_s=0.5)


def made(parameters=ENFORCE):
    codel = Codel()
    tuned(codel, AdmissionParameters(codel=parameters))
    return codel


def sheds(codel, flow, wait_s, now):
    """Asked, and the answer carried out."""
    seen, is_no = codel.look(codel.seen(flow), came(flow), wait_s, now)
    codel.learn(flow, seen)
    return is_no


def standing(codel):
    assert codel.value(1.0, 0.0) == len(codel.by_flow(0.0))
    return [(priority, tenant) for priority, tenant, _ in codel.by_flow(0.0)]


def feed(codel, wait_s, since, until, flow=A, every_s=0.01):
    """The share of requests shed while all wait so long."""
    count = round((until - since) / every_s)
    return sum(sheds(codel, flow, wait_s, since + n * every_s) for n in range(count)) / count


def test_short_waits_are_never_shed():
    assert feed(made(), 0.019, 0.0, 5.0) == 0.0


def test_queue_stands_after_an_interval_without_a_short_wait():
    codel = made()
    assert feed(codel, 0.1, 0.0, 0.5) == 0.0
    assert feed(codel, 0.1, 0.52, 3.0) > 0.95
    assert standing(codel) == [A]


def test_one_short_wait_in_an_interval_means_it_does_not_stand():
    codel = made()
    for n in range(400):
        assert not sheds(codel, A, 0.01 if n % 40 == 7 else 0.2, 0.01 * n)


def test_wait_up_to_twice_the_target_is_not_shed_while_it_stands():
    codel = made()
    feed(codel, 0.1, 0.0, 0.6)
    assert not sheds(codel, A, 0.04, 0.61)
    assert sheds(codel, A, 0.041, 0.62)


def test_first_of_an_interval_is_not_shed():
    codel = made()
    feed(codel, 0.1, 0.0, 1.0)
    assert not sheds(codel, A, 0.1, 1.03)
    assert sheds(codel, A, 0.1, 1.04)


def test_drained_queue_stands_no_more():
    codel = made()
    feed(codel, 0.1, 0.0, 2.0)
    feed(codel, 0.001, 2.0, 3.1)
    assert standing(codel) == []
    assert not sheds(codel, A, 0.1, 3.1)


def test_pause_is_forgotten():
    codel = made()
    feed(codel, 0.1, 0.0, 2.0)
    assert feed(codel, 0.1, 60.0, 60.5) == 0.0


def test_flows_are_watched_apart():
    codel = made()
    feed(codel, 0.1, 0.0, 2.0, flow=A)
    assert feed(codel, 0.001, 2.0, 2.3, flow=B) == 0.0
    assert feed(codel, 0.1, 2.3, 2.4, flow=A) > 0.8
    assert feed(codel, 0.1, 2.3, 2.4, flow=B) == 0.0


def test_looking_changes_nothing():
    codel = made()
    feed(codel, 0.1, 0.0, 0.52)
    first = codel.look(codel.seen(A), came(A), 0.1, 0.53)
    assert codel.look(codel.seen(A), came(A), 0.1, 0.53) == first
    assert first[1]


def test_frozen_queue_goes_on_as_found():
    codel = made()
    feed(codel, 0.1, 0.0, 2.0)
    tuned(codel, AdmissionParameters(codel=ENFORCE), frozen=True)
    assert feed(codel, 0.001, 2.0, 4.0) == 0.0
    assert standing(codel) == [A]
    assert sheds(codel, A, 0.1, 9.0)
