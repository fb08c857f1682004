"""A log level that gateways say reaches processes that run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from deployments.process import cluster_store, log_choice, logs


class Store:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data: dict[str, bytes] = {}
        self.away = False
        monkeypatch.setattr(cluster_store, "put", self.put)
        monkeypatch.setattr(cluster_store, "get", self.get)

    def put(self, key: str, data: bytes) -> None:
        self._there()
        self.data[key] = data

    def get(self, key: str) -> bytes | None:
        self._there()
        return self.data.get(key)

    def _there(self) -> None:
        if self.away:
            raise cluster_store.StoreError("gone")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    logger = logging.getLogger(logs.ROOT)
    before = (logger.level, [*logger.handlers], logger.propagate)
    logs.configure("info", "json")
    yield Store(monkeypatch)
    logger.level, logger.handlers, logger.propagate = before


def level() -> str:
    return logging.getLevelName(logging.getLogger(logs.ROOT).level)


def test_a_process_logs_as_the_gateway_that_started_last_says(store: Store) -> None:
    assert log_choice.look(None) is None
    assert level() == "INFO"
    log_choice.publish("debug", "text")
    seen = log_choice.look(None, "m")
    assert level() == "DEBUG"
    (handler,) = logging.getLogger(logs.ROOT).handlers
    assert isinstance(handler.formatter, logs.TextFormatter)
    log_choice.publish("warning", "json")
    log_choice.look(seen)
    assert level() == "WARNING"


def test_what_was_said_already_changes_nothing(store: Store) -> None:
    log_choice.publish("debug", "json")
    seen = log_choice.look(None)
    handlers = [*logging.getLogger(logs.ROOT).handlers]
    assert log_choice.look(seen) == seen
    assert logging.getLogger(logs.ROOT).handlers == handlers


def test_a_store_that_is_away_keeps_nobody_up(store: Store) -> None:
    log_choice.publish("debug", "json")
    seen = log_choice.look(None)
    store.away = True
    log_choice.publish("error", "json")
    assert log_choice.look(seen) == seen
    assert level() == "DEBUG"


def test_it_begins_as_the_environment_says_and_looks_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, heard = threading.Event(), []

    def look(seen: bytes | None, model: str) -> bytes:
        heard.append((level(), model))
        looked.set()
        return b""

    monkeypatch.setenv(logs.LOG_LEVEL, "error")
    monkeypatch.setattr(log_choice, "look", look)
    log_choice.follow("m")
    assert looked.wait(5.0)
    assert heard[0] == ("ERROR", "m")
