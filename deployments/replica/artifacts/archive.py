"""Unpacks a .tar, .tar.gz, .tgz or .zip into a folder that no entry can leave.

Only files and folders are taken. An archive is refused as a whole if an entry is a link or a
device, has a name that leads out of the folder, or is there twice. What comes out of it is
bounded by the room on the disk, and counted as it is written, whatever sizes the archive states;
headers and lists of entries have bounds of their own. Owners, modes and times are not kept.
Source: the advice of `tarfile` (PEP 706) and `zipfile` on untrusted archives; CVE-2024-0450.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from deployments.replica.artifacts.room import free_bytes
from deployments.replica.artifacts.tar import TarReader
from deployments.settings.remote_source import ARCHIVES, SourceError, escapes_folder

MAX_ENTRIES = 100_000
MAX_LIST_BYTES = 64 << 20  # of a zip's list of entries, which is read whole
_PIECE_BYTES = 1 << 20
# What the two libraries raise on damaged archives.
_DAMAGED = (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError,
            RuntimeError, ValueError, UnicodeError)  # fmt: skip
# Errors of a disk that an archive causes: a seek before the file's beginning, an impossible name.
_NOT_THE_DISKS = (errno.EINVAL, errno.ENAMETOOLONG)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry. `content`: None for a folder; `refused`: what it is, if it may not be there."""

    name: str
    content: IO[bytes] | None
    refused: str = ""


def stem(name: str) -> str:
    """The archive's name without its ending."""
    for ending in sorted(ARCHIVES, key=len, reverse=True):
        if name.lower().endswith(ending) and len(name) > len(ending):
            return name[: -len(ending)]
    return "unpacked"


def unpack(file: Path, folder: Path) -> None:
    """Unpack into `folder`, which is created. Raises SourceError, and the disk's OSError."""
    folder.mkdir()
    room = free_bytes(folder)
    try:
        with ExitStack() as opened:
            entries = (_of_zip if file.name.lower().endswith(".zip") else _of_tar)(file, opened)
            for count, entry in enumerate(entries, 1):
                if count > MAX_ENTRIES:
                    raise SourceError(f"{file.name} has more than {MAX_ENTRIES} entries")
                room -= _place(file.name, entry, folder, room)
    except _DAMAGED as error:
        raise SourceError(
            f"{file.name} cannot be unpacked: {type(error).__name__}: {error}"
        ) from error
    except OSError as error:
        if error.errno not in _NOT_THE_DISKS:
            raise
        raise SourceError(f"{file.name} cannot be unpacked: {error.strerror}") from error


def _place(archive: str, entry: _Entry, folder: Path, room: int) -> int:
    """Write the entry; returns the bytes that it took."""
    if escapes_folder(entry.name) or "\0" in entry.name:
        raise SourceError(f"{archive} has an entry {entry.name!r}, which leads out of it")
    if not entry.name:
        raise SourceError(f"{archive} has an entry without a name")
    if entry.refused:
        raise SourceError(f"{archive}: {entry.name} is {entry.refused}; only files can be in it")
    path = folder / entry.name
    try:
        if entry.content is None:
            path.mkdir(parents=True, exist_ok=True)
            return 0
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as out:
            return _copy(archive, entry.content, out, room)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise SourceError(f"{archive} has {entry.name} twice") from None


def _copy(archive: str, content: IO[bytes], out: IO[bytes], room: int) -> int:
    took = 0
    while piece := content.read(_PIECE_BYTES):
        took += len(piece)
        if took > room:
            raise SourceError(f"{archive}: what is in it does not fit on the disk; free some")
        out.write(piece)
    return took


def _of_tar(file: Path, opened: ExitStack) -> Iterator[_Entry]:
    raw = opened.enter_context(file.open("rb"))
    packed = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    reader = TarReader(cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw)
    for member in reader:
        if member.kind == "folder":
            yield _Entry(member.name, None)
        elif member.kind == "file":
            yield _Entry(member.name, cast("IO[bytes]", reader))
        else:
            yield _Entry(member.name, None, member.kind)


class _ShortReads(io.FileIO):
    """A file of which no piece larger than a bound is read at once: a zip's list of entries is."""

    def read(self, size: int | None = -1, /) -> Any:
        wanted = os.fstat(self.fileno()).st_size - self.tell()
        if size is not None and 0 <= size < wanted:
            wanted = size
        if wanted > MAX_LIST_BYTES:
            raise zipfile.BadZipFile(f"its list of entries is larger than {MAX_LIST_BYTES} bytes")
        return super().read(wanted)


def _of_zip(file: Path, opened: ExitStack) -> Iterator[_Entry]:
    raw = opened.enter_context(_ShortReads(file))
    archive = opened.enter_context(zipfile.ZipFile(cast("IO[bytes]", raw)))
    _refuse_overlaps(archive)
    for info in archive.infolist():
        mode = info.external_attr >> 16
        if info.filename.endswith("/"):  # `is_dir` raises for an entry without a name
            yield _Entry(info.filename, None)
        elif mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            yield _Entry(info.filename, None, "a link or a device")
        else:
            with archive.open(info) as content:
                yield _Entry(info.filename, content)


def _refuse_overlaps(archive: zipfile.ZipFile) -> None:
    """Entries that share compressed bytes unpack to far more than the archive could hold."""
    end = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        if info.header_offset < end:
            raise zipfile.BadZipFile(f"entries overlap, {info.filename!r} among them")
        end = info.header_offset + info.compress_size
