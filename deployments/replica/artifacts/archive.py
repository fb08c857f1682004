"""Unpacks a .tar, .tar.gz, .tgz or .zip into a folder that no entry can leave.

Only files and folders are taken. An archive is refused as a whole if an entry is a link or a
device, has a name that leads out of the folder, or is there twice. What comes out of it is bounded
by the room on the disk, and counted as it is written. Headers and lists of entries have bounds of
their own: Python's `tarfile` keeps headers of any length in memory, and some of its versions parse
them in quadratic time (CVE-2024-6232). Here of PAX records only `path` and `size` count.
Source: POSIX.1-2017, pax; GNU tar's manual; PEP 706; CVE-2024-0450 (`zipfile`).
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

from deployments.replica.artifacts.fetch import free_bytes
from deployments.settings.remote_source import ARCHIVES, SourceError, escapes_folder

BLOCK = 512
MAX_HEAD_BYTES = 64 << 10  # of long names and PAX records before one entry; a path has 4 KiB
MAX_HEADS_BYTES = 256 << 20  # of all entries together
_FILES, _FOLDER, _LONG_NAME, _PAX, _GLOBAL = b"0\0007", b"5", b"L", b"x", b"g"
_LONG_LINK, _SPARSE = b"K", b"S"
MAX_ENTRIES = 100_000
MAX_LIST_BYTES = 64 << 20  # of a zip's list of entries, which is read whole
_PIECE_BYTES = 1 << 20
# What the two libraries raise on damaged archives.
_DAMAGED = (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError,
            RuntimeError, ValueError, UnicodeError)  # fmt: skip
# Errors of a disk that an archive causes: a seek before the file's beginning, an impossible name.
_NOT_THE_DISKS = (errno.EINVAL, errno.ENAMETOOLONG)


class DamagedArchive(ValueError):
    """The bytes are no tar archive, or one that is cut off."""


@dataclass(frozen=True, slots=True)
class _ArchiveEntry:
    """One entry. `content`: None for a folder; `refused`: what it is, if it may not be there."""

    name: str
    content: IO[bytes] | None
    refused: str = ""


@dataclass(slots=True)
class _ExtraHeaders:
    """What extra headers say of the entry after them."""

    name: str | None = None
    size: int | None = None
    sparse: bool = False
    head_bytes: int = 0


class TarReader:
    """Reads a stream, every byte of which is counted, in linear time. Iterate over the entries; of
    each, call `read` until it gives b"", or leave it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._left = self._padding = 0  # of the member that is being read
        self._heads_bytes = 0

    def __iter__(self) -> Iterator[_ArchiveEntry]:
        extra = _ExtraHeaders()
        while (header := self._header()) is not None:
            kind, size = header[156:157], _number(header[124:136])
            if kind in (_LONG_NAME, _LONG_LINK, _PAX, _GLOBAL):
                self._extra(kind, size, extra)
                continue
            yield self._entry(header, kind, size, extra)
            extra = _ExtraHeaders()

    def read(self, size: int) -> bytes:
        """At most so many bytes of the member's content."""
        piece = self._exactly(min(size, self._left))
        self._left -= len(piece)
        return piece

    def _entry(self, header: bytes, kind: bytes, size: int, extra: _ExtraHeaders) -> _ArchiveEntry:
        size = size if extra.size is None else extra.size
        name = extra.name if extra.name is not None else _name(header)
        folder = kind == _FOLDER or (
            kind in _FILES and name.endswith("/")
        )  # so in the oldest format
        self._left = 0 if folder else size
        self._padding = -self._left % BLOCK
        if folder:
            return _ArchiveEntry(name.rstrip("/"), None)
        if extra.sparse or kind == _SPARSE:
            return _ArchiveEntry(name, None, "a sparse file")
        if kind not in _FILES:
            return _ArchiveEntry(name, None, "a link or a device")
        return _ArchiveEntry(name, cast("IO[bytes]", self))

    def _header(self) -> bytes | None:
        """The next header; None at the end, which is a block of zeros or the end of the stream."""
        while self._left:
            self.read(1 << 20)
        self._exactly(self._padding)
        self._padding = 0
        header = self._some(BLOCK)
        self._count(BLOCK)
        if not header and self._heads_bytes == BLOCK:
            raise DamagedArchive("the archive is empty")
        if not header or not header.strip(b"\0"):
            return None
        own = sum(header) - sum(header[148:156]) + 8 * 32
        if len(header) < BLOCK or _number(header[148:156]) != own:
            raise DamagedArchive("a header of the archive is damaged")
        return header

    def _extra(self, kind: bytes, size: int, extra: _ExtraHeaders) -> None:
        extra.head_bytes += size + BLOCK
        if extra.head_bytes > MAX_HEAD_BYTES:
            raise DamagedArchive(f"an entry has more than {MAX_HEAD_BYTES} bytes of headers")
        self._count(size)
        content = self._exactly(size)
        self._exactly(-size % BLOCK)
        if kind == _LONG_NAME:
            extra.name = _text(content.split(b"\0", 1)[0])
        elif kind == _PAX:
            for key, value in _records(content):
                if key == b"path":
                    extra.name = _text(value)
                elif key == b"size":
                    extra.size = _decimal(value)
                extra.sparse = extra.sparse or key.startswith(b"GNU.sparse.")

    def _count(self, size: int) -> None:
        self._heads_bytes += size
        if self._heads_bytes > MAX_HEADS_BYTES:
            raise DamagedArchive(f"the archive has more than {MAX_HEADS_BYTES} bytes of headers")

    def _exactly(self, size: int) -> bytes:
        found = self._some(size)
        if len(found) < size:
            raise DamagedArchive("the archive is cut off")
        return found

    def _some(self, size: int) -> bytes:
        """So many bytes, fewer only at the stream's end: a pipe gives them in pieces."""
        parts = []
        while size and (piece := self._stream.read(size)):
            parts.append(piece)
            size -= len(piece)
        return b"".join(parts)


def _records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """PAX: `LENGTH KEY=VALUE\\n`, LENGTH being that of the whole record."""
    at = 0
    while at < len(content):
        space = content.find(b" ", at, at + 20)
        length = _decimal(content[at:space]) if space >= 0 else 0
        record = content[space + 1 : at + length]
        key, equals, value = record.partition(b"=")
        if length < 5 or at + length > len(content) or not equals or not value.endswith(b"\n"):
            raise DamagedArchive("a PAX header of the archive is damaged")
        yield key, value[:-1]
        at += length


def _name(header: bytes) -> str:
    name, prefix = (part.split(b"\0", 1)[0] for part in (header[:100], header[345:500]))
    is_posix = header[257:263] == b"ustar\0"  # GNU's own headers have times in that place
    return _text(prefix + b"/" + name if prefix and is_posix else name)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise DamagedArchive(f"a name in the archive is not UTF-8: {error}") from None


def _number(raw: bytes) -> int:
    if raw[0] & 0x80:  # GNU: base 256
        return int.from_bytes(raw[1:], "big")
    digits = raw.strip(b" \0")
    if digits.strip(b"01234567"):
        raise DamagedArchive("a number in a header of the archive is damaged")
    return int(digits or b"0", 8)


def _decimal(raw: bytes) -> int:
    if not raw.isdigit() or len(raw) > 19:
        raise DamagedArchive("a number in a header of the archive is damaged")
    return int(raw)


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


def _place(archive: str, entry: _ArchiveEntry, folder: Path, room: int) -> int:
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


def _of_tar(file: Path, opened: ExitStack) -> Iterator[_ArchiveEntry]:
    raw = opened.enter_context(file.open("rb"))
    packed = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    return iter(TarReader(cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw))


class _ShortReads(io.FileIO):
    """A file of which no piece larger than a bound is read at once: a zip's list of entries is."""

    def read(self, size: int | None = -1, /) -> Any:
        wanted = os.fstat(self.fileno()).st_size - self.tell()
        if size is not None and 0 <= size < wanted:
            wanted = size
        if wanted > MAX_LIST_BYTES:
            raise zipfile.BadZipFile(f"its list of entries is larger than {MAX_LIST_BYTES} bytes")
        return super().read(wanted)


def _of_zip(file: Path, opened: ExitStack) -> Iterator[_ArchiveEntry]:
    raw = opened.enter_context(_ShortReads(file))
    archive = opened.enter_context(zipfile.ZipFile(cast("IO[bytes]", raw)))
    _refuse_overlaps(archive)
    for info in archive.infolist():
        mode = info.external_attr >> 16
        if info.filename.endswith("/"):  # `is_dir` raises for an entry without a name
            yield _ArchiveEntry(info.filename, None)
        elif mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            yield _ArchiveEntry(info.filename, None, "a link or a device")
        else:
            with archive.open(info) as content:
                yield _ArchiveEntry(info.filename, content)


def _refuse_overlaps(archive: zipfile.ZipFile) -> None:
    """Entries that share compressed bytes unpack to far more than the archive could hold."""
    end = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        if info.header_offset < end:
            raise zipfile.BadZipFile(f"entries overlap, {info.filename!r} among them")
        end = info.header_offset + info.compress_size
