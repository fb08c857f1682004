"""Appends lines to a file so that a full disk never spoils more than the line that it cut off.

A disk that runs full may take part of a line without an error. The next line must not be joined to
that part, or both would be lost.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


def append(path: Path, line: bytes) -> None:
    """Append `line`, which includes its newline. Creates the file, readable by its owner only.

    Raises OSError; also when only part of the line was written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    handle = os.open(path, flags, 0o600)
    try:
        whole = line if _ends_whole(handle) else b"\n" + line
        if os.write(handle, whole) < len(whole):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(handle)


def _ends_whole(handle: int) -> bool:
    """Whether the file is empty or ends with a newline."""
    size = os.fstat(handle).st_size
    return size == 0 or os.pread(handle, 1, size - 1) == b"\n"
