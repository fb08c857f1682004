"""The switch of all learning leaves what waits and what was learnt as they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routers.api.events import Reconfigure
from routers.api.settings import BucketSettings

BUCKETS = BucketSettings(adaptive=True, solve_every_s=1.0, half_life_s=100.0)
PROFILE = tuple((rows, width, 1e-5 * rows * width) for rows in (1, 8) for width in (10, 512))


@pytest.fixture
def learnt(start):
    """Edges that have moved, a turnaround of 20 ms, and one row that waits."""
    core = start(buckets=BUCKETS, initial_cost_s=0.001, profile=PROFILE)
    core.replicas("a")
    for index in range(50):
        lengths = [10 + n % 5 for n in range(30)]
        (sent,) = core.arrive(index, *lengths, at=index * 0.05)
        core.close(sent, at=index * 0.05 + 0.02, service_s=0.001)
    core.arrive(2001, 12, at=4.0)
    core.arrive(2002, 12, at=4.0)
    return core


def state(core):
    snapshot = core.dispatcher.snapshot(core.now)
    margins = [
        core.dispatcher._groups.reference.turnaround.margin_s(edge) for edge in snapshot.edges
    ]
    return snapshot, margins


def switch(core, frozen):
    settings = replace(core.dispatcher._requests.settings, frozen=frozen)
    assert core.step(Reconfigure(settings)) == []


def test_freezing_and_thawing_changes_nothing_that_is_there(learnt):
    before, margins = state(learnt)
    assert before.edges != (32, 128, 512)
    assert max(margins) > 0.001
    switch(learnt, True)
    assert [each.frozen for each in state(learnt)[0].controllers] == [True] * 2
    switch(learnt, False)
    assert state(learnt) == (before, margins)


def test_frozen_edges_stay_whatever_comes(learnt):
    before, _ = state(learnt)
    switch(learnt, True)
    for index in range(30):
        learnt.arrive(5000 + index, *[500] * 60, at=5.0 + index * 0.1)
    assert state(learnt)[0].edges == before.edges
