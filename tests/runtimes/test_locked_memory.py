"""Weights that stay in memory: really locked, freed again, refused with the limit's name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from runtimes.errors import LoadError
from runtimes.host import LockedFile

STATUS = Path("/proc/self/status")
pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="needs Linux's /proc")


def locked_kib() -> int:
    return int(re.search(r"VmLck:\s*(\d+)", STATUS.read_text()).group(1))


def test_file_is_locked_until_it_is_released(tmp_path):
    file = tmp_path / "weights"
    file.write_bytes(b"w" * 8192)
    before = locked_kib()
    locked = LockedFile(file)
    assert locked_kib() == before + 8
    locked.release()
    locked.release()
    assert locked_kib() == before


def test_empty_file_needs_no_lock(tmp_path):
    file = tmp_path / "weights"
    file.touch()
    LockedFile(file).release()


def test_limit_is_named_where_the_system_says_no(tmp_path):
    """In a process of its own, which gives up the right to lock what it likes."""
    file = tmp_path / "weights"
    file.write_bytes(b"w" * (3 << 20))
    program = (
        "import ctypes, resource, sys, pathlib\n"
        "from runtimes.host import LockedFile\n"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))\n"
        "class Head(ctypes.Structure): _fields_ = [('v', ctypes.c_uint32), ('pid', ctypes.c_int)]\n"
        "none = (ctypes.c_uint32 * 6)()\n"
        "ctypes.CDLL(None).capset(ctypes.byref(Head(0x20080522, 0)), none)\n"
        "LockedFile(pathlib.Path(sys.argv[1]))\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, str(file)], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "it is 3 MiB and RLIMIT_MEMLOCK is 1 MiB" in done.stderr


def test_no_page_is_copied(tmp_path):
    file = tmp_path / "weights"
    file.write_bytes(b"\1" * (4 << 20))
    try:
        locked = LockedFile(file)
    except LoadError as refused:
        pytest.skip(f"this machine's bound is lower: {refused}")
    try:
        text = Path("/proc/self/smaps").read_text().split(str(file), 1)[1]
        anonymous = next(line for line in text.splitlines() if line.startswith("Anonymous:"))
        assert int(anonymous.split()[1]) == 0
    finally:
        locked.release()
