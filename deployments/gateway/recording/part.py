"""Where one gateway's part of a recording is written: a folder, or a prefix in an object store.

A folder's trace grows by appending. Objects cannot grow: there the trace is a row of objects of
`SEGMENT_LINES` lines, the last of which is written anew with what came since, so that the objects
stay few and the bytes written twice stay bounded. Samples are replaced as a whole in both; whoever
reads meanwhile sees the old ones or the new ones.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from deployments.settings import remote_source
from deployments.settings_files import object_store
from runtimes import ragged_file

HEADER = ("time", "length", "tenant")
GENERATED = ("time", "length", "output", "tenant")  # of a model that generates
TRACE = "trace.csv"
PARTS = "parts"
SEGMENT = "trace-{:05d}.csv"
SEGMENT_LINES = 20_000
Line = tuple[str | int, ...]
Columns = Mapping[str, list[ragged_file.Array]]


class RecordedPart(Protocol):
    """`every_s`: how often it may be written to; `failures`: how many writes in a row may fail
    before the recording ends. Both methods raise what the disk or the store says."""

    every_s: float
    failures: int

    def append(self, lines: Sequence[Line]) -> None:
        """Those that could not be written go with the next ones, where failures are allowed."""
        ...

    def replace(self, columns: Columns) -> None:
        """All rows that are kept."""
        ...


def part_of(folder: str, name: str, header: tuple[str, ...] = HEADER) -> RecordedPart:
    """`folder`: a model's, as its settings name it: a path, or a URL; `header`: of its trace.
    Nothing is opened yet."""
    if remote_source.is_remote(folder):
        return ObjectPart(folder, name, header)
    return FolderPart(Path(remote_source.path_of(folder)) / PARTS / name, header)


class FolderPart:
    """Files are their owner's alone: they hold what callers sent."""

    every_s = 5.0
    failures = 1

    def __init__(self, folder: Path, header: tuple[str, ...] = HEADER) -> None:
        self.folder = folder
        self._header = header

    def __str__(self) -> str:
        return str(self.folder)

    def append(self, lines: Sequence[Line]) -> None:
        self._make()
        trace = self.folder / TRACE
        fresh = not trace.exists()
        with open(trace, "a", opener=_private, newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([self._header, *lines] if fresh else lines)

    def replace(self, columns: Columns) -> None:
        """Whole or not at all: a reader may come at any time."""
        self._make()
        made = self.folder / f".{ragged_file.FILE}"
        try:
            with open(made, "wb", opener=_private) as stream:
                ragged_file.write(stream, columns)
            os.replace(made, self.folder / ragged_file.FILE)
        finally:
            with contextlib.suppress(OSError):
                made.unlink(missing_ok=True)

    def _make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)


class ObjectPart:
    """Who may read the objects is the bucket's business."""

    every_s = 60.0
    failures = 5

    def __init__(self, folder: str, name: str, header: tuple[str, ...] = HEADER) -> None:
        self._folder = folder
        self._name = name
        self._header = header
        self._opened: tuple[Any, str] | None = None
        self._segment = 0
        self._lines: list[Line] = []

    def __str__(self) -> str:
        return f"{remote_source.redacted(self._folder).rstrip('/')}/{PARTS}/{self._name}"

    def append(self, lines: Sequence[Line]) -> None:
        self._lines += lines
        while self._lines:
            text = io.StringIO(newline="")
            csv.writer(text).writerows([self._header, *self._lines[:SEGMENT_LINES]])
            self._put(SEGMENT.format(self._segment), text.getvalue().encode())
            if len(self._lines) < SEGMENT_LINES:
                return
            del self._lines[:SEGMENT_LINES]
            self._segment += 1

    def replace(self, columns: Columns) -> None:
        packed = io.BytesIO()
        ragged_file.write(packed, columns)
        self._put(ragged_file.FILE, packed.getvalue())

    def _put(self, name: str, content: bytes) -> None:
        if self._opened is None:  # here, in the recorder's thread: the library takes its time
            self._opened = object_store.store(self._folder)
        file_system, path = self._opened
        place = f"{path.rstrip('/')}/{PARTS}/{self._name}"
        try:
            file_system.pipe_file(f"{place}/{name}", content)
        except FileNotFoundError:
            if self._folder.partition("://")[0] in object_store.EXTRAS:
                raise  # there is no such bucket, and none is made
            file_system.makedirs(place, exist_ok=True)
            file_system.pipe_file(f"{place}/{name}", content)


def _private(path: str, flags: int) -> int:
    """Opened so that only its owner may read it."""
    return os.open(path, flags, 0o600)
