"""Recorded events of dispatchers have the same actions again, whoever takes snapshots meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracles import event_logs


@pytest.mark.parametrize("look_every", [0, 7])
@pytest.mark.parametrize("log", event_logs.logs(), ids=lambda log: log.name.partition(".")[0])
def test_recorded_events_have_the_same_actions(log: Path, look_every: int) -> None:
    assert not event_logs.difference(log, look_every)


def test_there_are_logs() -> None:
    assert len(event_logs.logs()) >= len(event_logs.SECONDS)
