"""A model's weights locked in memory, whatever else the host does with it.

`lock` keeps a file's pages in memory with `mlock(2)`, through a mapping of its own: pages of a file
are shared, so a library that has mapped the same file finds them there, however long nobody asked.
What a library copied for itself (weights repacked for its kernels) is memory of its own and is not
locked.

The system bounds how much a process may lock, `RLIMIT_MEMLOCK`; where it says no, the error names
the limit and what is needed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from pathlib import Path

import numpy as np

from runtimes.errors import LoadError

MIB = 1 << 20


class LockedFile:
    """A file's pages, in memory until `release`."""

    def __init__(self, file: Path) -> None:
        """Raises `LoadError`."""
        self.size_bytes = file.stat().st_size
        self._map: mmap.mmap | None = None
        if not self.size_bytes:
            return
        with file.open("rb") as opened:
            # Shared and read only, so that its pages are the file's own: locking a private mapping
            # that may be written copies each of them first.
            self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            _mlock(self._map, self.size_bytes, file)
        except LoadError:
            self.release()
            raise

    def release(self) -> None:
        mapped, self._map = self._map, None
        if mapped is not None:
            mapped.close()


def _mlock(mapped: mmap.mmap, size: int, file: Path) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    start = np.frombuffer(mapped, np.uint8)  # ctypes points at nothing that is read only
    try:
        address = ctypes.c_void_p(start.ctypes.data)
        if library.mlock(address, ctypes.c_size_t(size)) == 0:
            return
        code = ctypes.get_errno()
    finally:
        del start  # or the mapping could not be closed
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    bound = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft / MIB:.0f} MiB"
    raise LoadError(
        f"option 'mlock': {file.name} cannot be kept in memory ({os.strerror(code)}): it is "
        f"{size / MIB:.0f} MiB and RLIMIT_MEMLOCK is {bound}; raise it (ulimit -l, LimitMEMLOCK=, "
        "or the container's memlock) or set mlock to false"
    )
