"""A gateway's side of the data channel, in a hurry."""

from __future__ import annotations

import pytest
from both_loops import event_loop_policy as event_loop_policy

CHANNEL = "deployments.gateway.queues.connections"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a channel does every second or after a while, it does every few milliseconds."""
    monkeypatch.setattr(f"{CHANNEL}._CHECK_EVERY_S", 0.003)
    monkeypatch.setattr(f"{CHANNEL}._FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(f"{CHANNEL}._LONGEST_PAUSE_S", 0.004)
