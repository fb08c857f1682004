"""Reads the files of a tar archive from a stream, every byte of which is counted.

Python's own `tarfile` keeps headers of any length in memory, and some of its versions parse them in
quadratic time (CVE-2024-6232). Here all headers are bounded, those of one entry and together, and
are read in linear time: 512 bytes an entry, and before them long names and PAX records, of which
only `path` and `size` count. Sparse files, links and devices are for the caller to refuse.

Source: POSIX.1-2017, pax (ustar and PAX headers); GNU tar's manual (long names, sizes in base 256).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

BLOCK = 512
MAX_HEAD_BYTES = 64 << 10  # of long names and PAX records before one entry; a path has 4 KiB
MAX_HEADS_BYTES = 256 << 20  # of all entries together
_FILES, _FOLDER, _LONG_NAME, _PAX, _GLOBAL = b"0\0007", b"5", b"L", b"x", b"g"
_LONG_LINK, _SPARSE = b"K", b"S"


class Damaged(ValueError):
    """The bytes are no tar archive, or one that is cut off."""


@dataclass(frozen=True, slots=True)
class Member:
    """An entry whose content is next in the stream. `kind`: "file" or "folder", else what
    it is."""

    name: str
    kind: str
    size_bytes: int


@dataclass(slots=True)
class _Said:
    """What extra headers say of the entry after them."""

    name: str | None = None
    size: int | None = None
    sparse: bool = False
    head_bytes: int = field(default=0)


class TarReader:
    """Iterate over the members; of each, call `read` until it gives b"", or leave it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._left = self._padding = 0  # of the member that is being read
        self._heads_bytes = 0

    def __iter__(self) -> Iterator[Member]:
        said = _Said()
        while (header := self._header()) is not None:
            kind, size = header[156:157], _number(header[124:136])
            if kind in (_LONG_NAME, _LONG_LINK, _PAX, _GLOBAL):
                self._extra(kind, size, said)
                continue
            yield self._member(header, kind, size, said)
            said = _Said()

    def read(self, size: int) -> bytes:
        """At most so many bytes of the member's content."""
        piece = self._exactly(min(size, self._left))
        self._left -= len(piece)
        return piece

    def _member(self, header: bytes, kind: bytes, size: int, said: _Said) -> Member:
        size = size if said.size is None else said.size
        name = said.name if said.name is not None else _name(header)
        if kind == _FOLDER or (kind in _FILES and name.endswith("/")):  # so in the oldest format
            words, name, size = "folder", name.rstrip("/"), 0
        elif said.sparse or kind == _SPARSE:
            words = "a sparse file"
        else:
            words = "file" if kind in _FILES else "a link or a device"
        self._left, self._padding = size, -size % BLOCK
        return Member(name, words, size)

    def _header(self) -> bytes | None:
        """The next header; None at the end, which is a block of zeros or the end of the stream."""
        while self._left:
            self.read(1 << 20)
        self._exactly(self._padding)
        self._padding = 0
        header = self._some(BLOCK)
        self._count(BLOCK)
        if not header and self._heads_bytes == BLOCK:
            raise Damaged("the archive is empty")
        if not header or not header.strip(b"\0"):
            return None
        if len(header) < BLOCK or not _sums_up(header):
            raise Damaged("a header of the archive is damaged")
        return header

    def _extra(self, kind: bytes, size: int, said: _Said) -> None:
        said.head_bytes += size + BLOCK
        if said.head_bytes > MAX_HEAD_BYTES:
            raise Damaged(f"an entry has more than {MAX_HEAD_BYTES} bytes of headers")
        self._count(size)
        content = self._exactly(size)
        self._exactly(-size % BLOCK)
        if kind == _LONG_NAME:
            said.name = _text(content.split(b"\0", 1)[0])
        elif kind == _PAX:
            for key, value in _records(content):
                if key == b"path":
                    said.name = _text(value)
                elif key == b"size":
                    said.size = _decimal(value)
                said.sparse = said.sparse or key.startswith(b"GNU.sparse.")

    def _count(self, size: int) -> None:
        self._heads_bytes += size
        if self._heads_bytes > MAX_HEADS_BYTES:
            raise Damaged(f"the archive has more than {MAX_HEADS_BYTES} bytes of headers")

    def _exactly(self, size: int) -> bytes:
        found = self._some(size)
        if len(found) < size:
            raise Damaged("the archive is cut off")
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
            raise Damaged("a PAX header of the archive is damaged")
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
        raise Damaged(f"a name in the archive is not UTF-8: {error}") from None


def _number(raw: bytes) -> int:
    if raw[0] & 0x80:  # GNU: base 256
        return int.from_bytes(raw[1:], "big")
    digits = raw.strip(b" \0")
    if digits.strip(b"01234567"):
        raise Damaged("a number in a header of the archive is damaged")
    return int(digits or b"0", 8)


def _decimal(raw: bytes) -> int:
    if not raw.isdigit() or len(raw) > 19:
        raise Damaged("a number in a header of the archive is damaged")
    return int(raw)


def _sums_up(header: bytes) -> bool:
    own = sum(header) - sum(header[148:156]) + 8 * 32
    return _number(header[148:156]) == own
