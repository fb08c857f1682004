"""How much late work may wait: all that idle moments could serve, nothing without any."""

import pytest

from routers.api.settings import Mode
from routers.policies.admission.controllers import BestEffortCapacity
from routers.policies.admission.verdicts import Verdicts


def busy(room, share, until, since=0.0, batch_s=0.02):
    now = since
    while now < until:
        now += batch_s
        room.worked(share * batch_s, now)
    return now


def test_system_that_has_just_started_has_half_the_timeout_of_every_replica():
    assert BestEffortCapacity().capacity_s(1.0, 4, 0.0) == pytest.approx(2.0)
    assert BestEffortCapacity().capacity_s(1.0, 0, 0.0) == pytest.approx(0.5)


@pytest.mark.parametrize("late_s", [0.49, 0.51])
def test_what_exceeds_the_room_is_refused(late_s):
    assert BestEffortCapacity().refuses(late_s, 1.0, 1, 0.0) is (late_s > 0.5)


def test_one_that_has_waited_may_count_on_all_idle_moments_a_newcomer_on_half():
    room = BestEffortCapacity()
    assert room.refuses(0.6, 1.0, 1, 0.0)
    assert not room.ends(0.6, 1.0, 1, 0.0)
    assert room.ends(1.1, 1.0, 1, 0.0)


def test_lasting_overload_closes_the_room():
    room = BestEffortCapacity()
    now = busy(room, 1.0, 12.0)
    assert room.spare(1, now) == 0.0
    assert room.refuses(0.001, 1.0, 1, now)


def test_room_is_open_again_a_second_after_overload():
    room = BestEffortCapacity()
    now = busy(room, 1.0, 12.0)
    assert room.capacity_s(1.0, 1, now + 1.0) > 0.15


def test_late_work_does_not_close_the_room():
    """Time spent on late rows is not reported: it is what the room is for."""
    room = BestEffortCapacity()
    now = busy(room, 0.5, 12.0)
    assert room.spare(1, now) == pytest.approx(0.5, abs=0.03)


def test_other_replicas_that_idle_keep_it_open():
    room = BestEffortCapacity()
    now = busy(room, 1.0, 12.0)
    assert room.spare(4, now) == pytest.approx(0.75, abs=0.03)


def test_fixed_room_learns_nothing():
    room = BestEffortCapacity(fixed_s=0.3)
    now = busy(room, 1.0, 12.0)
    assert room.capacity_s(1.0, 1, now) == 0.3


def test_frozen_room_stays():
    room = BestEffortCapacity()
    now = busy(room, 1.0, 12.0)
    room.frozen = True
    before = room.spare(2, now)
    room.worked(100.0, now)
    assert room.spare(2, now + 100.0) == before


def test_observing_lets_wait_and_counts():
    room = BestEffortCapacity(Verdicts(Mode.OBSERVE))
    assert not room.refuses(9.0, 1.0, 1, 0.0)
    assert room.verdicts.would_shed == 1


def test_switched_off_it_lets_all_wait():
    room = BestEffortCapacity(Verdicts(Mode.OFF))
    assert not room.refuses(9.0, 1.0, 1, 0.0)
    assert room.verdicts.would_shed == 0
