"""What tests of queues and of the data channel below them share."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture
def said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """The log."""
    monkeypatch.setattr(logging.getLogger("headrace"), "propagate", True)
    return caplog
