from __future__ import annotations

import errno
import io
import json
import os
import threading

import pytest

from deployments.tools import serve as host


def test_rubbish_between_the_hosts_lines_is_passed_over():
    lines = io.StringIO('chatter\n[1]\n{"event": "stopped"}\n"text"\n{}\n')
    assert list(host._events(lines)) == [json.loads('{"event": "stopped"}')]


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1), (2, 2), (-9, 1)])
def test_the_hosts_end_becomes_an_exit_code(code, expected, capsys):
    assert host._exit_code(code) == expected
    assert ("SIGKILL" in capsys.readouterr().err) == (code == -9)


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("event", ["phase", "failed", "log"])
def test_a_full_disk_under_the_log_does_not_end_the_server(event, monkeypatch):
    monkeypatch.setattr("sys.stderr", FullDisk())
    host._say({"event": event, "message": "said"})


class Guard:
    """Of a host that left nothing."""

    def __init__(self) -> None:
        self.watched: list[list[object]] = []

    def clear(self) -> None:
        return None

    def watch(self, processes: list[object]) -> None:
        self.watched.append(processes)


def test_the_processes_to_guard_are_told_to_the_guard_alone():
    own = {"name": "raylet", "address": "127.0.0.1:1", "pid": os.getpid()}
    gone = {**own, "pid": 2**22 + 1}
    events = [{"event": "cluster", "processes": each} for each in ([own], [gone])]
    guard = Guard()
    assert list(host._guarded(iter([*events, {"event": "ready"}]), guard)) == [{"event": "ready"}]
    ((watched,),) = guard.watched
    assert watched.process.pid == os.getpid()


class Child:
    """The host's process: it runs (None) or has ended with `code`."""

    def __init__(self, code: int | None) -> None:
        self._code, self.signals = code, []

    def poll(self) -> int | None:
        return self._code

    def wait(self) -> int:
        assert self._code is not None
        return self._code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


@pytest.mark.parametrize(("code", "left_with"), [(0, 0), (1, 1), (-9, 1)])
def test_who_asks_again_when_the_host_has_ended_does_not_wait_for_the_output(
    code, left_with, monkeypatch
):
    left = []
    monkeypatch.setattr(os, "_exit", left.append)
    host._ask_to_stop(Child(code))
    assert left == [left_with]


@pytest.mark.parametrize(("code", "left_with"), [(0, 0), (1, 1), (-9, 1)])
def test_whose_last_words_nobody_reads_ends_soon_after_the_host(code, left_with, monkeypatch):
    left: list[int] = []
    has_left = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: (left.append(code), has_left.set()))
    with host._ends_with(Child(code), Guard(), 0.0):
        assert has_left.wait(5.0)
    assert left == [left_with]


def test_who_has_said_all_is_left_alone(monkeypatch):
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail(f"ended with {code}"))
    before = set(threading.enumerate())
    with host._ends_with(Child(0), Guard(), 60.0):
        watching = set(threading.enumerate()) - before
    for thread in watching:
        thread.join(5.0)
        assert not thread.is_alive()
