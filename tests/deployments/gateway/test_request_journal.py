"""Gateways end in every way there is, and the others know what they worked on: processes that
really die."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from deployments.gateway.queues.suspected_requests import (
    NO_SLOT,
    Note,
    RequestJournal,
    Siblings,
    key_of,
)

KEYS = [bytes([n]) * 16 for n in range(4)]
SLOTS = 3

# Notes the keys that it reads, one a line, after its own name; the second one ran alone.
GATEWAY = """
import os, pathlib, sys
from deployments.gateway.queues.suspected_requests import RequestJournal
journal = RequestJournal(pathlib.Path(sys.argv[1]), sys.argv[2], 3)
slots = [journal.note(bytes.fromhex(key), alone=n == 1) for n, key in enumerate(sys.argv[3:])]
print("noted", flush=True)
how = sys.stdin.readline().strip()
if how == "clears":
    journal.clear(slots[0])
    how = "exits"
if how == "closes":
    journal.close()
if how == "hangs":
    os._exit(70)
if how == "aborts":
    os.abort()
"""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a gateway that works on some keys."""
    made: list[subprocess.Popen[str]] = []

    def start(name: str, *keys: bytes) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", GATEWAY, str(tmp_path), name, *[key.hex() for key in keys]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        made.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "noted\n"
        return process

    yield start
    for process in made:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[str], how: str) -> None:
    """It ends so."""
    assert process.stdin is not None
    process.stdin.write(how + "\n")
    process.stdin.flush()


class Heard:
    """What is heard of gateways that end."""

    def __init__(self, folder: Path, own: str = "own") -> None:
        self.ended: dict[str, list[Note]] = {}
        self._one = asyncio.Event()
        self.siblings = Siblings(folder, own, self._has_ended)

    def _has_ended(self, name: str, notes: Sequence[Note]) -> None:
        assert name not in self.ended
        self.ended[name] = sorted(notes)
        self._one.set()

    async def one(self) -> None:
        await asyncio.wait_for(self._one.wait(), 10.0)


@pytest.fixture
async def heard(tmp_path: Path):
    made = Heard(tmp_path)
    yield made
    made.siblings.close()


NOTED = [Note(KEYS[0], alone=False), Note(KEYS[1], alone=True)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "hangs", "aborts", "exits"])
async def test_what_a_gateway_had_is_known_when_its_process_ends(gateway, heard, how):
    process = gateway("a", KEYS[0], KEYS[1])
    heard.siblings.start()
    assert heard.ended == {}
    if how == "SIGKILL":
        os.kill(process.pid, signal.SIGKILL)
    else:
        told(process, how)
    await heard.one()
    assert heard.ended == {"a": NOTED}
    heard.siblings.look()
    assert heard.ended == {"a": NOTED}


@pytest.mark.slow
async def test_one_that_has_ended_is_noticed_before_the_loop_says_so(gateway, heard):
    process = gateway("a", KEYS[0], KEYS[1])
    heard.siblings.start()
    heard.siblings.check()
    assert heard.ended == {}
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - so it blocks
    heard.siblings.check()
    assert heard.ended == {"a": NOTED}


@pytest.mark.slow
@pytest.mark.slow
async def test_that_is_noticed_also_where_many_connections_are_open(gateway, heard):
    """`select` takes no file whose number is 1,024 or more."""
    fewest, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(fewest, 2048), most))
    files = [os.open(os.devnull, os.O_RDONLY)]
    try:
        files += [os.dup(files[0]) for _ in range(1024)]
        process = gateway("a", KEYS[0])
        heard.siblings.look()
        process.kill()
        process.wait()
        heard.siblings.check()
        assert heard.ended == {"a": [Note(KEYS[0], False)]}
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (fewest, most))


async def test_a_gateway_that_ends_in_order_leaves_nothing(gateway, heard, tmp_path):
    process = gateway("a", KEYS[0], KEYS[1])
    heard.siblings.start()
    told(process, "closes")
    process.wait(10)
    heard.siblings.check()
    await asyncio.sleep(0.05)
    assert heard.ended == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
async def test_what_was_cleared_is_not_among_it(gateway, heard):
    process = gateway("a", KEYS[0], KEYS[1])
    heard.siblings.start()
    told(process, "clears")
    await heard.one()
    assert heard.ended == {"a": NOTED[1:]}


@pytest.mark.slow
async def test_the_next_gateway_takes_in_what_the_one_before_it_had_and_removes_it(
    gateway, heard, tmp_path
):
    process = gateway("a", KEYS[0], KEYS[1])
    process.kill()
    process.wait(10)
    heard.siblings.start()
    assert heard.ended == {"a": NOTED}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
async def test_a_gateway_that_came_later_is_followed_from_the_next_look_on(gateway, heard):
    heard.siblings.start()
    process = gateway("a", KEYS[0], KEYS[1])
    heard.siblings.look()
    process.kill()
    await heard.one()
    assert heard.ended == {"a": NOTED}


def test_its_own_journal_is_nobodys(tmp_path):
    journal = RequestJournal(tmp_path, "own", SLOTS)
    journal.note(KEYS[0], alone=False)
    heard = Heard(tmp_path)
    heard.siblings.start()
    journal.close()
    assert heard.ended == {}


def test_a_full_journal_notes_nothing_more_and_room_comes_back(tmp_path):
    journal = RequestJournal(tmp_path, "own", SLOTS)
    slots = [journal.note(key, alone=False) for key in KEYS[:SLOTS]]
    assert NO_SLOT not in slots
    assert journal.note(KEYS[3], alone=False) == NO_SLOT
    journal.clear(NO_SLOT)
    journal.clear(slots[1])
    assert journal.note(KEYS[3], alone=False) == slots[1]
    journal.close()


def test_a_file_that_is_no_journal_is_passed_over(tmp_path):
    (tmp_path / "a.requests").write_bytes(b"\x01" * 200)
    (tmp_path / "b.requests").write_bytes(b"")
    heard = Heard(tmp_path)
    heard.siblings.start()
    assert heard.ended == {}


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 100_000, 3_000_001])
def test_a_key_tells_paths_lengths_and_ends_apart(size):
    body = bytes(n % 251 for n in range(size))
    key = key_of("/v1/a", body)
    assert len(key) == 16
    assert key == key_of("/v1/a", bytes(bytearray(body)))
    others = {key_of("/v1/b", body), key_of("/v1/a", body + b" ")}
    if size:
        others |= {key_of("/v1/a", b"x" + body[1:]), key_of("/v1/a", body[:-1] + b"x")}
    assert key not in others
    assert len(others) == (4 if size > 1 else 2 + size)


def test_bodies_of_four_kilobytes_are_told_apart_by_any_byte():
    body = bytes(4096)
    keys = {key_of("/v1/a", body[:at] + b"x" + body[at + 1 :]) for at in range(len(body))}
    assert len(keys) == len(body)
