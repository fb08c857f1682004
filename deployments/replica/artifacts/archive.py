"""Unpacks a .tar, .tar.gz, .tgz or .zip into a folder that none of its entries can leave.

Files and folders only: an entry that is a link or a device, or whose name leads out, refuses the
archive as a whole, as does one that is there twice. What comes out is bounded by the room on the
disk and counted as it is written, whatever the archive says of its sizes. Owners, modes and times
are not taken over. Source: the advice of `tarfile` (PEP 706) and `zipfile` on untrusted archives.
"""

from __future__ import annotations

import errno
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from deployments.replica.artifacts.room import free_bytes
from deployments.settings.remote_source import ARCHIVES, SourceError, leads_out

MOST_ENTRIES = 100_000
_PIECE_BYTES = 1 << 20
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError,
            RuntimeError, ValueError, UnicodeError)  # fmt: skip
# A place before the file's beginning, a name that no disk takes.
_NOT_THE_DISKS = (errno.EINVAL, errno.ENAMETOOLONG)


@dataclass(frozen=True, slots=True)
class _Entry:
    """`content`: None of a folder. `refused`: what it is, where it may not be."""

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
    """Into `folder`, which is made. Raises SourceError, and OSError of the disk."""
    folder.mkdir()
    room = free_bytes(folder)
    try:
        with ExitStack() as opened:
            entries = (_of_zip if file.name.lower().endswith(".zip") else _of_tar)(file, opened)
            for count, entry in enumerate(entries, 1):
                if count > MOST_ENTRIES:
                    raise SourceError(f"{file.name} has more than {MOST_ENTRIES} entries")
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
    """The bytes that it took."""
    if leads_out(entry.name) or "\0" in entry.name:
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
    try:
        archive = tarfile.open(file, "r|*")  # noqa: SIM115 - streamed: compressed, it has no places
    except TypeError as error:  # what it raises of a gzip header that is cut off
        raise tarfile.ReadError("its header is cut off") from error
    opened.enter_context(archive)
    for member in archive:
        if member.isdir():
            yield _Entry(member.name, None)
        elif member.isreg():
            yield _Entry(member.name, archive.extractfile(member))
        else:
            yield _Entry(member.name, None, "a link or a device")


def _of_zip(file: Path, opened: ExitStack) -> Iterator[_Entry]:
    archive = opened.enter_context(zipfile.ZipFile(file))
    for info in archive.infolist():
        mode = info.external_attr >> 16
        if info.filename.endswith("/"):  # `is_dir` raises of an entry without a name
            yield _Entry(info.filename, None)
        elif mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            yield _Entry(info.filename, None, "a link or a device")
        else:
            with archive.open(info) as content:
                yield _Entry(info.filename, content)
