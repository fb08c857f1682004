"""Recorded events of dispatchers have the same actions again, whoever takes snapshots meanwhile."""

from __future__ import annotations

from itertools import cycle

import pytest

from tests.oracles import event_logs

LOGS = {log.name.partition(".")[0]: log for log in event_logs.logs()}


@pytest.mark.parametrize(("name", "look_every"), zip(LOGS, cycle((0, 7))))
def test_recorded_events_have_the_same_actions(name: str, look_every: int) -> None:
    assert not event_logs.difference(LOGS[name], look_every)


def test_there_are_logs() -> None:
    assert len(event_logs.logs()) >= len(event_logs.SECONDS)
