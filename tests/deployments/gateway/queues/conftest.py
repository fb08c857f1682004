"""What tests of queues and of channels to replicas share."""

from __future__ import annotations

import logging

import pytest

CHANNEL = "deployments.gateway.queues.replica_channel"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a channel does every second or after a while, it does every few milliseconds."""
    monkeypatch.setattr(f"{CHANNEL}._CHECK_EVERY_S", 0.003)
    monkeypatch.setattr(f"{CHANNEL}._FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(f"{CHANNEL}._LONGEST_PAUSE_S", 0.004)


@pytest.fixture
def said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """The log."""
    monkeypatch.setattr(logging.getLogger("headrace"), "propagate", True)
    return caplog
