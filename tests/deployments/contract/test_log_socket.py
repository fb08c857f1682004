from __future__ import annotations

import json
import logging
import queue

import pytest

from deployments.contract import log_socket, logs


@pytest.fixture
def lines(tmp_path, monkeypatch):
    """What the host's end takes; the process's end is found through the environment."""
    taken: queue.Queue[str] = queue.Queue()
    host = log_socket.LogSocket(tmp_path / "log.sock", taken.put)
    monkeypatch.setenv(log_socket.VARIABLE, str(host.path))
    yield taken
    host.close()


@pytest.fixture
def logger():
    found = logging.getLogger(logs.ROOT)
    kept = found.handlers[:], found.level, found.propagate
    yield found
    found.handlers[:], found.level, found.propagate = kept


def test_a_line_arrives_whole(lines, logger):
    logs.configure()
    logger.error("it broke", extra={"model": "m"})
    line = json.loads(lines.get(timeout=5))
    assert (line["message"], line["model"]) == ("it broke", "m")


def test_lines_keep_their_order(lines, logger):
    logs.configure(form="text")
    for number in range(3):
        logger.warning("line %d", number)
    assert [lines.get(timeout=5)[-6:] for _ in range(3)] == ["line 0", "line 1", "line 2"]


def test_a_host_that_is_gone_loses_lines_and_harms_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv(log_socket.VARIABLE, str(tmp_path / "gone.sock"))
    assert log_socket.stream().write("a line\n") == 7


def test_without_the_variable_lines_go_elsewhere(monkeypatch):
    monkeypatch.delenv(log_socket.VARIABLE, raising=False)
    assert log_socket.stream() is None
