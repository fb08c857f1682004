"""How much late work may wait: all that idle moments could serve, nothing without any."""

import pytest

from routers.api.settings import AdmissionParameters
from routers.policies.admission.best_effort_capacity import BestEffortCapacity
from routers.policies.admission.types import LateWork
from tests.routers.newcomers import tuned


def refuses(room, late_s, now=0.0, *, is_new=True):
    """Of one replica, to one that has a second left."""
    return room.refuses(LateWork(late_s, 1.0, 1, is_new), now)


def worked(room, seconds, now, *, late=False):
    room.served(((0, "a", seconds / 4), (0, "b", seconds * 3 / 4)), now, late=late)


def busy(room, share, until, since=0.0, batch_s=0.02):
    now = since
    while now < until:
        now += batch_s
        worked(room, share * batch_s, now)
    return now


def test_system_that_has_just_started_has_half_the_timeout_of_every_replica():
    assert BestEffortCapacity().capacity_s(1.0, 4, 0.0) == pytest.approx(2.0)
    assert BestEffortCapacity().capacity_s(1.0, 0, 0.0) == pytest.approx(0.5)


@pytest.mark.parametrize("late_s", [0.49, 0.51])
def test_what_exceeds_the_room_is_refused(late_s):
    assert refuses(BestEffortCapacity(), late_s) is (late_s > 0.5)


def test_one_that_has_waited_may_count_on_all_idle_moments_a_newcomer_on_half():
    room = BestEffortCapacity()
    assert refuses(room, 0.6)
    assert not refuses(room, 0.6, is_new=False)
    assert refuses(room, 1.1, is_new=False)


def test_lasting_overload_closes_the_room():
    room = BestEffortCapacity()
    now = busy(room, 1.0, 12.0)
    assert room.value(1, now) == 0.0
    assert refuses(room, 0.001, now)


def test_room_is_open_again_a_second_after_overload():
    room = BestEffortCapacity()
    now = busy(room, 1.0, 12.0)
    assert room.capacity_s(1.0, 1, now + 1.0) > 0.15


def test_late_work_does_not_close_the_room():
    """Time spent on late rows does not count: it is what the room is for."""
    room = BestEffortCapacity()
    now = busy(room, 0.5, 12.0)
    worked(room, 5.0, now, late=True)
    assert room.value(1, now) == pytest.approx(0.5, abs=0.03)


def test_other_replicas_that_idle_keep_it_open():
    room = BestEffortCapacity()
    now = busy(room, 1.0, 12.0)
    assert room.value(4, now) == pytest.approx(0.75, abs=0.03)


def test_fixed_room_learns_nothing():
    room = BestEffortCapacity()
    tuned(room, AdmissionParameters(best_effort_capacity_s=0.3))
    now = busy(room, 1.0, 12.0)
    assert room.capacity_s(1.0, 1, now) == 0.3


def test_frozen_room_stays():
    room = BestEffortCapacity()
    now = busy(room, 1.0, 12.0)
    tuned(room, frozen=True)
    before = room.value(2, now)
    worked(room, 100.0, now)
    assert room.value(2, now + 100.0) == before
