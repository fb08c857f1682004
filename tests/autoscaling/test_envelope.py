"""Which bursts and backlogs are spikes, and which are chance."""

from random import Random

import pytest

from autoscaling.demand import DemandView
from autoscaling.envelope import Backlog, Envelope, windows
from autoscaling.settings import PolicySettings

NONE = Backlog(0.0, 0.0, 0.4)
POLICY = PolicySettings()


def seen(*rates, request_work_s=0.05, span_s=64.0):
    windows_s = (8.0, 16.0, 32.0, 64.0)
    return DemandView(True, span_s=span_s, rates=tuple(zip(windows_s, rates, strict=True)),
                      request_work_s=request_work_s)  # fmt: skip


def test_demand_as_planned_is_no_spike():
    assert Envelope().spike(seen(4.0, 4.0, 4.0, 4.0), 4.0, NONE, POLICY, 0.0).rate == 0.0


def test_steep_burst_shows_in_the_shortest_window():
    spike = Envelope().spike(seen(8.0, 6.0, 5.0, 4.5), 4.0, NONE, POLICY, 0.0)
    assert (spike.rate, spike.window_s) == (8.0, 8.0)


def test_shallow_rise_shows_in_the_longest():
    spike = Envelope().spike(seen(4.3, 4.3, 4.3, 4.3), 4.0, NONE, POLICY, 0.0)
    assert spike.window_s == 64.0


@pytest.mark.parametrize("busy", [1.0, 5.0, 20.0])
def test_chance_alone_is_no_spike_in_an_hour(busy):
    """Windows of independent requests, looked at each second."""
    random, request_s = Random(3), 0.05
    works = [
        sum(random.expovariate(1 / request_s) for _ in range(round(random.gauss(
            busy / request_s, (busy / request_s) ** 0.5))))
        for _ in range(3600)
    ]  # fmt: skip
    envelope = Envelope()
    for second in range(64, 3600):
        rates = [sum(works[second - w : second]) / w for w in (8, 16, 32, 64)]
        view = seen(*rates, request_work_s=2 * request_s)
        assert envelope.spike(view, busy * 1.02, NONE, POLICY, float(second)).rate == 0.0


def test_window_that_is_not_known_yet_shows_nothing():
    view = seen(8.0, 8.0, 8.0, 8.0, span_s=7.0)
    assert Envelope().spike(view, 4.0, NONE, POLICY, 0.0).rate == 0.0


def test_backlog_is_a_spike_at_the_third_sample():
    envelope, backlog = Envelope(), Backlog(2.0, 0.3, 0.4, starts_in_s=10.0)
    view = seen(4.0, 4.0, 4.0, 4.0)
    rates = [envelope.spike(view, 4.0, backlog, POLICY, float(n)).rate for n in range(3)]
    assert rates == [0.0, 0.0, pytest.approx(4.2)]


def test_backlog_that_clears_in_between_begins_again():
    envelope, view = Envelope(), seen(4.0, 4.0, 4.0, 4.0)
    for n, wait_s in enumerate((0.3, 0.3, 0.2, 0.3, 0.3)):
        backlog = Backlog(2.0, wait_s, 0.4)
        assert envelope.spike(view, 4.0, backlog, POLICY, float(n)).rate == 0.0


def test_three_decisions_within_a_moment_are_one_sample():
    envelope, backlog = Envelope(), Backlog(2.0, 0.3, 0.4)
    for n in range(10):
        spike = envelope.spike(seen(4.0, 4.0, 4.0, 4.0), 4.0, backlog, POLICY, 0.01 * n)
        assert spike.rate == 0.0


def test_instant_path_can_be_off():
    off = PolicySettings(instant=False)
    assert Envelope().spike(seen(9.0, 9.0, 9.0, 9.0), 1.0, NONE, off, 0.0).rate == 0.0


def test_short_windows_are_looked_at_where_replicas_start_in_five_seconds():
    assert windows(POLICY, 5.1) == POLICY.windows_s
    assert windows(POLICY, 5.0) == (2.0, 4.0, *POLICY.windows_s)
