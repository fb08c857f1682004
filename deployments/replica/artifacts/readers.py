"""Reads the bytes of one remote file from any offset: HTTP by `Range`, object stores by seeking.

A fault that another try may avoid (a cut connection, a busy server) becomes `Interrupted`; one that
it will not (not there, not allowed) becomes SourceError. Other libraries' errors are mapped here
and nowhere else.
Sources: RFC 9110 §14 (ranges), §10.2.3 (Retry-After); fsspec's `AbstractFileSystem`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx

from deployments.settings.remote_source import SourceError, redacted

SILENCE_S = 30.0  # without any bytes, until a read is interrupted
_PIECE_BYTES = 4 << 20
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")  # of Content-Range
_AGAIN = (408, 425, 429)  # statuses after which another try may succeed, besides 5xx


class Interrupted(Exception):
    """The reading ended early. The bytes so far are good, and another try may bring the rest.
    `pause_s`: the pause that the server asks for; None if it names none."""

    def __init__(self, reason: str, pause_s: float | None = None) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


@dataclass(frozen=True, slots=True)
class Opened:
    """A remote file that is being read."""

    start: int  # offset of the first piece, never after the one asked for
    size: int | None  # of the whole file; None: unknown
    pieces: Iterator[bytes]


class Reader(Protocol):
    """One remote file."""

    def open_at(self, at: int) -> AbstractContextManager[Opened]:
        """Read from offset `at` on. Raises Interrupted and SourceError, also between pieces."""
        ...


class HttpReader:
    """A file at an http or https URL. User name and password come from the node's netrc file."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextlib.contextmanager
    def open_at(self, at: int) -> Iterator[Opened]:
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

    def _opened(self, answer: httpx.Response, at: int) -> Opened:
        status = answer.status_code
        if status == 200:
            size = answer.headers.get("content-length", "")
            return Opened(0, int(size) if size.isdigit() else None, answer.iter_raw())
        found = _RANGE.fullmatch(answer.headers.get("content-range", ""))
        size = found.group(2) if found else "*"
        total = int(size) if size != "*" else None
        if status == 206 and found and found.group(1) and int(found.group(1)) <= at:
            return Opened(int(found.group(1)), total, answer.iter_raw())
        if status == 416 and at:  # nothing is there: the file is whole, or has become shorter
            return Opened(at if total == at else 0, total, iter(()))
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
    def open_at(self, at: int) -> Iterator[Opened]:
        with store_faults(self._url):
            size = int(self._file_system.info(self._path)["size"])
            start = at if at <= size else 0
            file = self._file_system.open(self._path, "rb", cache_type="none")
        try:
            yield Opened(start, size, self._pieces(file, start, size))
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
