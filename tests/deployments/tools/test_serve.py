from __future__ import annotations

import errno
import io
import json

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
