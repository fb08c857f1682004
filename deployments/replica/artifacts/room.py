"""Does something more fit on the disk, and what is said if it does not?"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from deployments.settings.remote_source import SourceError

SPARE_BYTES = 256 << 20  # left free on the disk, for everything else on it
_FULL = (errno.ENOSPC, errno.EDQUOT)
_HOW = "free some, or move the cache folder with XDG_CACHE_HOME"


def free_bytes(folder: Path) -> int:
    """Bytes that may be written into the folder; 0 if none may."""
    return max(0, shutil.disk_usage(folder).free - SPARE_BYTES)


def check_room(what: str, folder: Path, more_bytes: int) -> None:
    """Raises SourceError if so many more bytes do not fit."""
    room = free_bytes(folder)
    if more_bytes > room:
        raise SourceError(
            f"{what}: {more_bytes:,} bytes do not fit on the disk of {folder}, which has room for "
            f"{room:,} ({SPARE_BYTES >> 20} MiB are left free); {_HOW}"
        )


def disk_fault(what: str, folder: Path, error: OSError) -> SourceError:
    """The error for a fault of the disk while something was written to it."""
    if error.errno in _FULL:
        return SourceError(f"{what}: the disk of {folder} is full; {_HOW}")
    at, why = error.filename or folder, error.strerror or error
    return SourceError(f"{what}: {at} cannot be written: {why}")
