"""One of two replicas dies and another takes its place: what becomes of the work that it held."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from routers.api.requests import Reason
from routers.api.settings import DispatcherSettings
from routers.simulation.simulator import Arrival, SimDevice, World, run
from routers.simulation.traffic import SimRecorder

SLO_S, TIMEOUT_S, DIES_AT, BACK_AFTER_S = 3.0, 30.0, 8.0, 5.0
RATE = 44.0  # a second: 60 % of what two replicas serve in full batches


def seconds(rows: int, width: int) -> float:
    return 0.04 + 0.002 * rows + 0.0003 * rows * width


def devices() -> tuple[SimDevice, ...]:
    back_at = DIES_AT + BACK_AFTER_S
    return (
        SimDevice("dies", seconds, dies_at=DIES_AT),
        SimDevice("stays", seconds),
        SimDevice("comes", seconds, joins_at=back_at),
    )


def arrivals(seed: int) -> list[Arrival]:
    rng, at, found = random.Random(seed), 0.0, []
    while at < 2 * DIES_AT:
        at += rng.expovariate(RATE)
        found.append(Arrival(at, (rng.randint(5, 160),), SLO_S, TIMEOUT_S))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_what_a_lost_replica_held_is_answered_as_soon_as_another_comes(seed):
    """Each row may be what ended it, so none is tried where that would leave no replica. Their
    deadlines pass meanwhile, and the one that stays is asked for more than it can serve."""
    recorder = SimRecorder()
    settings = DispatcherSettings(
        (16, 64, 160), max_size=16, max_tokens=2048, slo_s=SLO_S, suspect_hold_s=30.0
    )
    run(settings, arrivals(seed), World(devices(), detect_s=0.05), recorder)
    ended = [recorder.outcomes[request_id - 1] for request_id in sent_twice(recorder)]
    assert len(ended) >= 3
    assert [each.reason for each in ended if each.answered_at is None] == []
    soon = DIES_AT + BACK_AFTER_S + len(ended) * 2 * seconds(1, 160)
    assert all(DIES_AT + SLO_S < each.answered_at < soon for each in ended)
    assert {each.reason for each in recorder.outcomes if each.reason} <= {Reason.LATE}


def sent_twice(recorder: SimRecorder) -> set[int]:
    """Requests, of one row each."""
    sent = Counter(request_id for _, lease in recorder.batches for request_id, _ in lease.rows)
    return {request_id for request_id, times in sent.items() if times == 2}
