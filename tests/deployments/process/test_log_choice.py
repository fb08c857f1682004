"""A log level that gateways publish reaches processes that run."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator

import pytest

from deployments.process import cluster_store, log_choice, logs

_FOLLOW = log_choice._follow  # which no other test's process runs (tests/conftest.py)


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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_it_begins_as_the_environment_says_and_looks_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = []

    def look(seen: bytes | None, model: str) -> bytes:
        heard.append((level(), model))
        raise SystemExit  # of that thread

    monkeypatch.setenv(logs.LOG_LEVEL, "error")
    monkeypatch.setattr(log_choice, "look", look)
    monkeypatch.setattr(log_choice, "_follow", _FOLLOW)
    log_choice.follow("m")
    for thread in threading.enumerate():
        if thread.name == "log-choice":
            thread.join(5.0)
    assert heard == [("ERROR", "m")]


@pytest.mark.parametrize("said", [b"loud json", b"debug", b"\xff", b""])
def test_what_cannot_be_meant_is_logged_once_and_changes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(log_choice.logger, "warning", lambda text, *_: lines.append(text))
    store.data["log"] = said
    handlers = [*logging.getLogger(logs.ROOT).handlers]
    seen = log_choice.look(None)
    assert log_choice.look(seen) == said
    assert level() == "INFO"
    assert logging.getLogger(logs.ROOT).handlers == handlers
    assert lines == ["what gateways say of logging is ignored: %s"]
    log_choice.publish("debug", "json")
    log_choice.look(seen)
    assert level() == "DEBUG"


def test_it_is_published_once_the_store_is_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[bool] = []
    real = log_choice.publish

    def publish(level: str, form: str) -> bool:
        store.away = len(tries) < 2
        tries.append(real(level, form))
        return tries[-1]

    monkeypatch.setattr(log_choice, "_LOOK_S", 0.0)
    monkeypatch.setattr(log_choice, "publish", publish)
    log_choice.begin_publishing("debug", "text")
    for thread in threading.enumerate():
        if thread.name == "log-choice":
            thread.join(5.0)
    assert tries == [False, False, True]
    assert store.data == {"log": b"debug text"}


def test_a_line_during_a_change_goes_past_no_handler_of_ours(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, unfiltered = logging.getLogger(logs.ROOT), io.StringIO()
    monkeypatch.setattr(logging, "lastResort", logging.StreamHandler(unfiltered))

    def log_stream() -> io.StringIO:
        logger.error("of another thread, while the new handler is made")
        return io.StringIO()

    monkeypatch.setattr(logs, "log_stream", log_stream)
    logs.configure("debug", "text")
    assert unfiltered.getvalue() == ""
    assert len(logger.handlers) == 1
