"""Brings one remote file to the disk, continuing where an earlier try or process stopped.

The count of futile tries starts again after any try that brought bytes, so a slow connection that
is cut every minute still finishes. Nothing is verified here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from deployments.replica.artifacts.readers import Interrupted, Opened, Reader
from deployments.replica.artifacts.room import check_room
from deployments.settings.remote_source import SourceError

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # after tries in a row that brought nothing
_LONGEST_PAUSE_S = 60.0
_LOOK_BYTES = 64 << 20  # between two looks at the disk's room, for a file of unknown size
T = TypeVar("T")
Sleep = Callable[[float], None]
Tell = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file to fetch."""

    name: str  # below the folder that it is fetched to
    shown: str  # in messages
    reader: Reader
    size: int | None = None  # bytes; None: known only when it is opened


def download(file: RemoteFile, part: Path, report: Tell, sleep: Sleep) -> bool:
    """Read until `part` is as long as the remote file. Returns whether `part` has bytes of an
    earlier try.

    `report` is called with the bytes that are there and the whole size (None: unknown). Raises
    SourceError, and the disk's OSError.
    """
    part.parent.mkdir(parents=True, exist_ok=True)
    part.touch()
    if file.size and size_of(part) == file.size:
        return True
    began = trying(lambda: _read(file, part, report), lambda: size_of(part), file.shown, sleep)
    return began > 0


def trying(call: Callable[[], T], came: Callable[[], int], shown: str, sleep: Sleep) -> T:
    """The result of `call`, which is tried again when it is interrupted, until more tries in a row
    than there are pauses brought nothing. `came`: bytes that are there. Raises SourceError."""
    futile = 0
    while True:
        before = came()
        try:
            return call()
        except Interrupted as cut:
            futile = 0 if came() > before else futile + 1
            if futile > len(PAUSES_S):
                raise SourceError(
                    f"{shown} cannot be fetched: {cut} ({futile} times, nothing came); what has "
                    "come is kept, and the next start goes on from there"
                ) from cut
            asked = min(cut.pause_s or 0.0, _LONGEST_PAUSE_S)
            sleep(max(asked, PAUSES_S[max(futile - 1, 0)]))


def size_of(path: Path) -> int:
    """Bytes of the file; 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read(file: RemoteFile, part: Path, report: Tell) -> int:
    """Read what is missing. Returns the byte from which it was read."""
    with file.reader.open_at(size_of(part)) as opened, part.open("r+b") as out:
        out.truncate(opened.start)
        out.seek(opened.start)
        if opened.size is not None:
            check_room(file.shown, part.parent, opened.size - opened.start)
        _write(file, opened, out, report)
        out.flush()
        os.fsync(out.fileno())  # now, because a process killed here loses nothing
    have = size_of(part)
    if opened.size is not None and have != opened.size:
        raise Interrupted(f"it ended after {have:,} of {opened.size:,} bytes")
    return opened.start


def _write(file: RemoteFile, opened: Opened, out: BinaryIO, report: Tell) -> None:
    at = looked = opened.start
    for piece in opened.pieces:
        at += len(piece)
        if opened.size is not None and at > opened.size:
            raise SourceError(f"{file.shown} is longer than the {opened.size:,} bytes that it says")
        if at - looked > _LOOK_BYTES:
            looked = at
            check_room(file.shown, Path(out.name).parent, 0)
        out.write(piece)
        report(at, opened.size)
