"""Events reach whoever reads, and wait for nobody who does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from deployments.control.supervisor.control_socket import EventLines


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Descriptors to read from and to write to."""
    ends = os.pipe()
    yield ends
    for each in ends:
        os.close(each)


def test_lines_are_read_in_order(pipe):
    lines = EventLines(pipe[1])
    lines.say("phase", name="ray")
    lines.say("ready", seconds=1.5)
    lines.close()
    read = os.read(pipe[0], 10_000).splitlines()
    assert [json.loads(line) for line in read] == [
        {"event": "phase", "name": "ray"},
        {"event": "ready", "seconds": 1.5},
    ]


def test_nobody_waits_for_a_reader_that_does_not_read(pipe):
    lines = EventLines(pipe[1], most=3)
    began = time.monotonic()
    for _ in range(100):
        lines.say("log", message="x" * 10_000)  # a pipe holds 64 KiB
    lines.close(0.01)
    assert time.monotonic() - began < 5


def test_a_reader_that_left_is_no_error(capfd):
    reading, writing = os.pipe()
    os.close(reading)
    lines = EventLines(writing)
    lines.say("log", message="x")
    lines.say("log", message="y")
    lines.close()
    assert capfd.readouterr().err == ""
    os.close(writing)


def test_a_process_ends_although_its_reader_does_not_read(pipe):
    code = (
        "import sys; from deployments.control.supervisor.control_socket import EventLines\n"
        "lines = EventLines(sys.stdout.fileno())\n"
        "for _ in range(100): lines.say('log', message='x' * 10_000)\n"
        "lines.close(0.01)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=pipe[1])
    try:
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
