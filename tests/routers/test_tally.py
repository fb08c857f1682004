"""What staging just in time loses: idle device time, and time in which rows are bound too early."""

import pytest

from routers.types import Dispatch


def run(start, sent_at, done_at, service_s=0.1, transport_s=0.01):
    """Two batches of one replica: the first runs from 0 to 0.1 there, the second is sent at
    `sent_at` and answered at `done_at`; what is known then."""
    core = start(max_size=1)
    core.replicas("a", capacity=2)
    (first,) = core.arrive(1, at=0.0)
    if sent_at < 0.11:
        (second,) = core.arrive(2, at=sent_at)
        core.close(first, at=0.11, service_s=0.1, transport_s=transport_s)
    else:
        core.close(first, at=0.11, service_s=0.1, transport_s=transport_s)
        (second,) = core.arrive(2, at=sent_at)
    assert isinstance(second, Dispatch)
    core.close(second, at=done_at, service_s=service_s, transport_s=transport_s)
    return core.dispatcher.snapshot(core.now)


def test_a_batch_that_starts_as_the_other_ends_leaves_no_gap(start):
    assert run(start, 0.095, 0.21).idle_gap_s == pytest.approx(0.0, abs=1e-9)


def test_a_batch_sent_too_late_leaves_a_gap(start):
    assert run(start, 0.109, 0.224).idle_gap_s == pytest.approx(0.05 * 0.014)


def test_a_batch_sent_too_early_waits_at_the_replica(start):
    seen = run(start, 0.0, 0.21)
    assert seen.early_binding_s == pytest.approx(0.05 * 0.1)
    assert seen.idle_gap_s == pytest.approx(0.0, abs=1e-9)


def test_nothing_is_lost_while_nothing_waits(start):
    seen = run(start, 5.0, 5.11)
    assert (seen.idle_gap_s, seen.early_binding_s) == (0.0, 0.0)
