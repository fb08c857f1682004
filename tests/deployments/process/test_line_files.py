"""Lines in files stay whole, on a disk that runs full too."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.process.line_files import append


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file grows beyond; what does not fit is written in part, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_lines_follow_each_other_in_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "lines"
    append(file, b"one\n")
    append(file, b"two\n")
    assert file.read_bytes() == b"one\ntwo\n"
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("room", [4, 6, 7])
def test_a_line_that_does_not_fit_is_an_error_and_spoils_no_other(
    tmp_path: Path, room: int
) -> None:
    file = tmp_path / "lines"
    append(file, b"one\n")
    with room_for(room), pytest.raises(OSError, match=r"No space left|File too large"):
        append(file, b"two\n")
    append(file, b"three\n")
    assert file.read_bytes() == b"one\n" + b"two\n"[: room - 4] + b"\n" * (room > 4) + b"three\n"
