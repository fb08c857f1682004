"""How hard a model is pressed: one level from what its replicas do and what is refused."""

import pytest

from routers.api.requests import LeaseEnd
from routers.estimates.averages import Utilisation
from routers.estimates.pressure import Pressure, RefusedShare, pressure


@pytest.mark.parametrize(
    ("refused", "utilisation", "level"),
    [
        (0.0, 0.0, Pressure.AT_EASE),
        (0.0, 0.8, Pressure.AT_EASE),
        (0.0, 0.81, Pressure.BUSY),
        (0.01, 1.0, Pressure.BUSY),
        (0.011, 0.1, Pressure.REFUSES_SOME),
        (0.49, 1.0, Pressure.REFUSES_SOME),
        (0.5, 0.0, Pressure.REFUSES_MOST),
    ],
)
def test_levels_have_these_ends(refused, utilisation, level):
    assert pressure(refused, utilisation, 0.8) is level


def test_the_refused_share_follows_the_last_seconds_and_is_gone_without_requests():
    share = RefusedShare()
    for second in range(1, 31):
        share.advance(100 * second, 25 * second, float(second))
    assert share.read(30.0) == pytest.approx(0.25, abs=0.01)
    for second in range(31, 51):
        share.advance(100 * second, 25 * 30, float(second))
    assert share.read(50.0) < 0.01
    share.advance(6000, 1750, 51.0)
    assert share.read(51.0) > 0.5
    assert share.read(91.0) < 0.1


def test_one_refusal_among_few_requests_is_no_overload():
    share = RefusedShare()
    share.advance(1, 1, 0.0)
    assert share.read(0.0) == 0.5
    assert share.read(10.0) < 0.2


def test_utilisation_falls_while_nothing_happens():
    busy = Utilisation()
    busy.advance(0.0, 0.0)
    busy.advance(1.0, 10.0)
    assert busy.share > 0.99
    assert busy.read(0.0, 13.0) == pytest.approx(0.05, abs=0.01)
    assert busy.read(1.0, 13.0) > 0.99
    assert busy.share > 0.99, "reading changes nothing"


def level(core):
    return core.dispatcher.snapshot(core.now).pressure


def test_a_core_is_at_ease_then_busy_then_refuses_and_is_at_ease_again(start):
    core = start(max_queue_rows=4, slo_s=10.0)
    core.replicas("a")
    assert level(core) == Pressure.AT_EASE
    core.arrive(0)
    core.tick(5.0)
    assert level(core) == Pressure.BUSY
    for number in range(1, 6):
        core.arrive(number)
    core.tick(5.001)
    assert level(core) == Pressure.REFUSES_SOME
    for number in range(6, 20):
        core.arrive(number)
    core.tick(5.002)
    assert level(core) == Pressure.REFUSES_MOST
    core.drain()
    core.now += 60.0
    assert level(core) == Pressure.AT_EASE


def test_what_is_no_matter_of_load_presses_nobody(start):
    core = start(slo_s=10.0)
    core.replicas("a", "b")
    for number in range(50):
        core.arrive(number, 5000)  # longer than any row may be
    (lease,) = core.arrive(99, retryable=False)
    core.close(lease, LeaseEnd.LOST)
    core.tick(0.1)
    assert level(core) == Pressure.AT_EASE
