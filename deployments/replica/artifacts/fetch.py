"""Brings one remote source to this node's disk: resumed after a cut, bounded, verified.

A source that is not whole stays below `downloads/` in the cache folder, so that a killed process,
or a start that ran out of time, costs only time. A fault that another try may avoid becomes
`Interrupted`, one that it will not becomes SourceError. Tries are counted anew after any that
brought bytes, so a slow connection that is cut every minute still finishes. A partial file may be
of a version that no longer exists, so after a wrong digest everything is fetched once more.

Call it under the lock of the cache entry that it fetches for: one process per source and node.
Sources: RFC 9110 §14 (ranges), §10.2.3 (Retry-After); fsspec; Go's `dirhash.Hash1`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

import httpx

from deployments.settings.remote_source import (
    HTTP,
    RemoteSource,
    SourceError,
    escapes_folder,
    redacted,
)
from deployments.settings_files.object_store import files_below, store
from runtimes.staging import KEPT_UNUSED_S, sha256_of_file

SPARE_BYTES = 256 << 20  # left free on the disk, for everything else on it
_FULL = (errno.ENOSPC, errno.EDQUOT)
_HOW = "free some, or move the cache folder with XDG_CACHE_HOME"
SILENCE_S = 30.0  # without any bytes, until a read is interrupted
_PIECE_BYTES = 4 << 20
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")  # of Content-Range
_AGAIN = (408, 425, 429)  # statuses after which another try may succeed, besides 5xx
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # after tries in a row that brought nothing
_LONGEST_PAUSE_S = 60.0
_LOOK_BYTES = 64 << 20  # between two looks at the disk's room, for a file of unknown size
MAX_FILES = 10_000
FOLDER = "downloads"
_TOLD = 0.01  # the steps in which progress is told
T = TypeVar("T")
Sleep = Callable[[float], None]
Tell = Callable[[int, int | None], None]


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
    why = error.strerror or error
    return SourceError(f"{what}: {error.filename or folder} cannot be written: {why}")


def sha256_of(path: Path) -> str:
    """64 hexadecimal digits. Reads the whole file or folder."""
    if path.is_file():
        return sha256_of_file(path)
    total = hashlib.sha256()
    files = [(each.relative_to(path).as_posix(), each) for each in path.rglob("*")]
    for name, file in sorted(files, key=lambda entry: os.fsencode(entry[0])):
        if file.is_file():
            total.update(f"{sha256_of_file(file)}  {name}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def mismatch(path: Path, expected: str) -> str | None:
    """How the digest differs from `expected`; None if it does not, or nothing is expected."""
    if not expected:
        return None
    found = sha256_of(path)
    return None if found == expected else f"its SHA-256 is {found}, not {expected}"


class Interrupted(Exception):
    """The reading ended early. The bytes so far are good, and another try may bring the rest.
    `pause_s`: the pause that the server asks for; None if it names none."""

    def __init__(self, reason: str, pause_s: float | None = None) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


@dataclass(frozen=True, slots=True)
class RemoteStream:
    """A remote file that is being read."""

    start: int  # offset of the first piece, never after the one asked for
    size: int | None  # of the whole file; None: unknown
    pieces: Iterator[bytes]


class HttpReader:
    """A file at an http or https URL. User name and password come from the node's netrc file."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextlib.contextmanager
    def open_at(self, at: int) -> Iterator[RemoteStream]:
        """Read from offset `at` on. Raises Interrupted and SourceError, also between pieces."""
        headers = {"accept-encoding": "identity"}
        if at:
            headers["range"] = f"bytes={at}-"
        try:
            with (
                httpx.Client(follow_redirects=True, timeout=SILENCE_S, auth=_netrc()) as client,
                client.stream("GET", self._url, headers=headers) as answer,
            ):
                yield self._opened(answer, at)
        except httpx.TransportError as error:
            raise Interrupted(f"{type(error).__name__}: {error}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SourceError(f"{redacted(self._url)}: {type(error).__name__}: {error}") from error

    def _opened(self, answer: httpx.Response, at: int) -> RemoteStream:
        status = answer.status_code
        if status == 200:
            size = answer.headers.get("content-length", "")
            return RemoteStream(0, int(size) if size.isdigit() else None, answer.iter_raw())
        found = _RANGE.fullmatch(answer.headers.get("content-range", ""))
        size = found.group(2) if found else "*"
        total = int(size) if size != "*" else None
        if status == 206 and found and found.group(1) and int(found.group(1)) <= at:
            return RemoteStream(int(found.group(1)), total, answer.iter_raw())
        if status == 416 and at:  # nothing is there: the file is whole, or has become shorter
            return RemoteStream(at if total == at else 0, total, iter(()))
        raise self._fault(answer)

    def _fault(self, answer: httpx.Response) -> Exception:
        status, told = answer.status_code, f"{answer.status_code} {answer.reason_phrase}".strip()
        if status in _AGAIN or status >= 500:
            pause = answer.headers.get("retry-after", "")
            return Interrupted(f"it answers {told}", float(pause) if pause.isdigit() else None)
        if status in (401, 403):
            told += "; a name and password are taken from the node's netrc file"
        return SourceError(f"{redacted(self._url)} cannot be fetched: it answers {told}")


class StoreReader:
    """A file at `path` in the object store `file_system`, one of fsspec's. `url`: for messages."""

    def __init__(self, file_system: Any, path: str, url: str) -> None:
        self._file_system = file_system
        self._path = path
        self._url = url

    @contextlib.contextmanager
    def open_at(self, at: int) -> Iterator[RemoteStream]:
        """As `HttpReader`."""
        with store_faults(self._url):
            size = int(self._file_system.info(self._path)["size"])
            start = at if at <= size else 0
            file = self._file_system.open(self._path, "rb", cache_type="none")
        try:
            yield RemoteStream(start, size, self._pieces(file, start, size))
        finally:
            with contextlib.suppress(Exception):  # the file was read, or its fault is reported
                file.close()

    def _pieces(self, file: Any, start: int, size: int) -> Iterator[bytes]:
        at = start
        while at < size:
            with store_faults(self._url):
                file.seek(at)
                piece: bytes = file.read(min(_PIECE_BYTES, size - at))
            if not piece:
                return
            at += len(piece)
            yield piece


@contextlib.contextmanager
def store_faults(url: str) -> Iterator[None]:
    """Map a store's faults. Each store's library has errors of its own beside Python's."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceError(f"{redacted(url)} is not there") from error
    except PermissionError as error:
        raise SourceError(
            f"{redacted(url)} may not be read with the credentials that this node has: {error}"
        ) from error
    except (ImportError, NotImplementedError) as error:
        raise SourceError(f"{redacted(url)}: {error}") from error
    except Exception as error:
        raise Interrupted(f"{type(error).__name__}: {error}") from error


def _netrc() -> httpx.Auth | None:
    """The credentials in the file that curl and git read too; None without one."""
    try:
        return httpx.NetRCAuth() if (Path.home() / ".netrc").is_file() else None
    except (OSError, RuntimeError, SyntaxError):
        return None


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file to fetch."""

    name: str  # below the folder that it is fetched to
    shown: str  # in messages
    reader: HttpReader | StoreReader
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


def _write(file: RemoteFile, opened: RemoteStream, out: BinaryIO, report: Tell) -> None:
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


class SourceFetch:
    """One source to fetch. `progress` is called with the share that is there, 0..1."""

    def __init__(
        self,
        remote: RemoteSource,
        cache_dir: Path,
        progress: Callable[[float], None],
        *,
        sleep: Sleep = time.sleep,
    ) -> None:
        self._remote = remote
        self._progress = progress
        self._sleep = sleep
        name = hashlib.sha256(remote.name.encode()).hexdigest()[:8]
        self._partial = cache_dir / FOLDER / f"{remote.sha256}-{name}"
        self._told = 0.0

    @contextlib.contextmanager
    def verified(self) -> Iterator[Path]:
        """The whole file or folder, for the caller to move or read; removed afterwards. Raises
        SourceError."""
        self._progress(0.0)
        try:
            self._partial.mkdir(parents=True, exist_ok=True)
            _remove_forgotten(self._partial)
            yield self._with_right_digest()
            shutil.rmtree(self._partial, ignore_errors=True)
        except OSError as error:
            raise disk_fault(str(self._remote), self._partial, error) from error
        self._progress(1.0)

    def _with_right_digest(self) -> Path:
        fetched = self._partial / self._remote.name
        resumed = True
        while resumed:
            resumed = self._complete()
            wrong = mismatch(fetched, self._remote.sha256)
            if wrong is None:
                return fetched
            shutil.rmtree(self._partial)
        raise SourceError(
            f"{self._remote}: {wrong}, as the settings say; nothing of it is used. Either it has "
            "changed since, or it was tampered with"
        )

    def _complete(self) -> bool:
        """Fetch what is missing. Returns whether anything was there."""
        files = self._files()
        sizes = [file.size for file in files]
        whole = None if None in sizes else sum(size or 0 for size in sizes)
        parts = {self._partial / file.name: file for file in files}
        for path in list(self._partial.rglob("*")):
            if path.is_file() and path not in parts:  # of an earlier try, and not listed any more
                path.unlink()
        if whole is not None:
            there = sum(map(size_of, parts))
            check_room(str(self._remote), self._partial, whole - there)
        before, resumed = 0, False
        for part, file in parts.items():
            resumed |= download(file, part, self._teller(before, whole), self._sleep)
            before += size_of(part)
        return resumed

    def _teller(self, before: int, whole: int | None) -> Callable[[int, int | None], None]:
        def report(there: int, size: int | None) -> None:
            share = (before + there) / max(whole or size or 0, 1) if whole or size else 0.0
            if share >= self._told + _TOLD:
                self._told = share
                self._progress(min(share, 1.0))

        return report

    def _files(self) -> list[RemoteFile]:
        """The remote files. Raises SourceError."""
        remote = self._remote
        if remote.scheme in HTTP:
            return [RemoteFile(remote.name, str(remote), HttpReader(remote.url))]
        return trying(self._listed, lambda: 0, str(remote), self._sleep)

    def _listed(self) -> list[RemoteFile]:
        remote = self._remote
        file_system, path = store(remote.url)
        with store_faults(remote.url):
            if not remote.is_folder and file_system.isfile(path):
                reader = StoreReader(file_system, path, remote.url)
                size = int(file_system.info(path)["size"])
                return [RemoteFile(remote.name, str(remote), reader, size)]
            found = list(files_below(file_system, path))
        if not found:
            raise SourceError(f"{remote} is not there, or is an empty folder")
        if len(found) > MAX_FILES:
            raise SourceError(
                f"{remote} has {len(found)} files, more than {MAX_FILES}; give an archive of it"
            )
        store_path, files = path.rstrip("/"), []
        for name, size in found:
            if escapes_folder(name) or PurePosixPath(name).as_posix() != name:
                raise SourceError(f"{remote} has a file named {name!r}, which leads out of it")
            reader = StoreReader(file_system, f"{store_path}/{name}", remote.url)
            shown = f"{str(remote).rstrip('/')}/{name}"
            files.append(RemoteFile(f"{remote.name}/{name}", shown, reader, size))
        return files


def _remove_forgotten(fresh: Path) -> None:
    """Delete downloads that were not continued for as long as unused cache entries are kept."""
    fresh.touch()
    now = fresh.stat().st_mtime
    for partial in fresh.parent.iterdir():
        with contextlib.suppress(OSError):
            if now - partial.stat().st_mtime > KEPT_UNUSED_S:
                shutil.rmtree(partial)
