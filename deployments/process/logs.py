"""Log lines of all processes: their format, the fields that they may hold, and where they go.

A line is one JSON object (or plain text), written with the standard library's logging under the
logger `headrace`. Fields of a request are passed explicitly as `extra=`. Of those only the names in
`FIELDS` are written, so that a careless extra cannot put a body, a header or a key into the log.

Ray sends its workers' output to files of its own. On a local cluster the host process therefore
opens a Unix datagram socket and names it in HEADRACE_LOG_SOCKET; workers send each line to it as
one datagram. Sending never waits: if nobody reads fast enough, or the host is gone, the line is
dropped. Without the variable (on Kubernetes) each line is written to the process's stderr at once,
past `sys.stderr`: Ray Serve replaces that in replicas by a logger that keeps up to a thousand
lines, and a process that ends itself would lose the one that says why.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import msgspec

from yaml_document.credentials import without_keys

LOG_SOCKET = "HEADRACE_LOG_SOCKET"
LOG_LEVEL = "HEADRACE_LOG_LEVEL"
LOG_FORMAT = "HEADRACE_LOG_FORMAT"
_LONGEST_BYTES = 128 * 1024  # of a datagram
FIELDS = (
    "gateway", "model", "version", "replica", "tenant", "priority", "protocol", "request_id",
    "trace_id", "method", "path", "status", "outcome", "event", "decision",
    "reason", "total_ms", "queue_wait_ms",
    "rows", "batch_size", "bucket", "input_tokens", "output_tokens", "suppressed", "key_id",
    "actor", "verb", "object", "source", "before", "after", "detail",
)  # fmt: skip
ROOT = "headrace"
DECISIONS = "headrace.decisions"  # the log of decisions about requests
_LONGEST_TEXT = 8192  # characters of one value
_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(32), 127)}  # control characters
_encode = msgspec.json.Encoder(enc_hook=str).encode


class PerSecond:
    """At most `limit` of something in each second, counted anew with the next one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self.second = -1  # the last one in which anything was asked for

    def take(self, now: float) -> bool:
        """Whether one more may be had; `now`: seconds on any clock."""
        if int(now) != self.second:
            self.second, self._taken = int(now), 0
        if self._taken >= self._limit:
            return False
        self._taken += 1
        return True


class _Datagrams(io.TextIOBase):
    """A text stream of which every `write` sends one datagram."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._socket.sendto(text.encode("utf-8", "replace")[:_LONGEST_BYTES], self._path)
        return len(text)


def log_stream() -> TextIO | None:
    """The stream that this process's lines go to; None: stderr."""
    path = os.environ.get(LOG_SOCKET)
    return _Datagrams(path) if path else None  # type: ignore[return-value]


class LogSocket:
    """The host's end of the socket: calls `take(line)` on a thread of its own until closed."""

    def __init__(self, path: Path, take: Callable[[str], None]) -> None:
        self.path = path
        self._take = take
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        path.chmod(0o600)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._take(self._socket.recv(_LONGEST_BYTES).decode("utf-8", "replace").rstrip())

    def close(self) -> None:
        """Stop reading. Lines still on their way are lost."""
        self._socket.close()
        self.path.unlink(missing_ok=True)


def configure_from_environment(model: str = "") -> None:
    """Configure as this node's environment says; whoever starts Ray on the node sets that."""
    level, form = os.environ.get(LOG_LEVEL, "info"), os.environ.get(LOG_FORMAT, "json")
    configure(level, form, model=model)


def configure(
    level: str = "info", form: str = "json", stream: TextIO | None = None, *, model: str = ""
) -> None:
    """Send everything under the logger `headrace` to `stream`, as `json` or `text`. Idempotent.
    `model`: of lines that name no other.

    Without `stream`, lines go to the local host's log socket if there is one, else to the process's
    own stderr. Raises ValueError for a level that logging does not know; then nothing changes.
    """
    # Serve's `print` writes a tuple where a file is given (Ray 2.60), tracebacks among others.
    builtins.print = getattr(print, "__globals__", {}).get("buildin_print", print)
    logger = logging.getLogger(ROOT)
    logger.setLevel(level.upper())
    handler = logging.StreamHandler(stream or log_stream() or sys.__stderr__)
    handler.addFilter(lambda record: bool(record.__dict__.setdefault("model", model)) or True)
    handler.setFormatter(JSONFormatter() if form == "json" else TextFormatter())
    logger.handlers = [handler]  # at once: a line of another thread always has one
    logger.propagate = False
    # Written only where settings ask for it, and then whatever else is left out.
    logging.getLogger(DECISIONS).setLevel(logging.INFO)


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    """The fields of the record that have a value, in the order of `FIELDS`."""
    own = record.__dict__
    present = ((name, own[name]) for name in FIELDS if own.get(name) not in (None, ""))
    return {name: _printable(v) if isinstance(v, str) else v for name, v in present}


class JSONFormatter(logging.Formatter):
    """{"ts", "level", "logger", "message", fields …, "exception"}; `ts` is UTC, ISO 8601, ms."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _printable(record.getMessage()),
            **fields_of(record),
        }
        if record.exc_info:
            line["exception"] = _printable(self.formatException(record.exc_info))
        return _encode(line).decode()


class TextFormatter(logging.Formatter):
    """`time level logger message name=value …`; control characters are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [
            _timestamp(record),
            record.levelname.lower(),
            record.name,
            _printable(record.getMessage()),
        ]
        parts += [f"{name}={value}" for name, value in fields_of(record).items()]
        line = " ".join(parts).translate(_ESCAPED)
        if record.exc_info:
            line += "\n" + _printable(self.formatException(record.exc_info))
        return line


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _printable(text: str) -> str:
    """The text cut to `_LONGEST_TEXT`, without keys, and without lone surrogates, which JSON cannot
    carry."""
    return without_keys(text[:_LONGEST_TEXT]).encode("utf-8", "backslashreplace").decode()
