"""Lines that are added to a file: each whole, or not at all, whatever room its disk has.

A disk that runs full takes a part of a line and says nothing. What comes later must not stand on
that line's end, or both would be lost.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


def append(path: Path, line: bytes) -> None:
    """`line`: its end included. The file is its owner's alone, and made where there is none.

    Raises OSError, of a line that was written in part too.
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
    """Whether the next line would begin one."""
    size = os.fstat(handle).st_size
    return size == 0 or os.pread(handle, 1, size - 1) == b"\n"
