"""What does a log line look like, and what never stands in one?

One JSON object a line (or plain text), by the standard library's logging under the logger
`headrace`. What belongs to a request is passed explicitly as `extra=`; of that only the names in
`FIELDS` are written, so that a body, a header or a key cannot slip in with a careless extra. An
exception is one field. It configures no other library's logging.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

import msgspec

from deployments.contract import log_socket

FIELDS = (
    "gateway", "model", "version", "replica", "tenant", "priority", "protocol", "request_id",
    "trace_id", "method", "path", "status", "outcome", "reason", "total_ms", "queue_wait_ms",
    "rows", "batch_size", "bucket", "input_tokens", "output_tokens", "suppressed",
)  # fmt: skip
ROOT = "headrace"
_LONGEST_TEXT = 8192
_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(32), 127)}
_encode = msgspec.json.Encoder(enc_hook=str).encode


def configure(level: str = "info", form: str = "json", stream: TextIO | None = None) -> None:
    """Sends everything under `headrace` to `stream` as `json` or `text`; idempotent.

    Without `stream`: to the local host's log socket where there is one, else to stderr.
    """
    logger = logging.getLogger(ROOT)
    for handler in [*logger.handlers]:
        logger.removeHandler(handler)
    handler = logging.StreamHandler(stream or log_socket.stream() or sys.stderr)
    handler.setFormatter(JSONFormatter() if form == "json" else TextFormatter())
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    """The request's fields that the record carries, in the order of `FIELDS`."""
    own = record.__dict__
    present = ((name, own[name]) for name in FIELDS if own.get(name) not in (None, ""))
    return {name: _printable(v) if isinstance(v, str) else v for name, v in present}


class JSONFormatter(logging.Formatter):
    """{"ts", "level", "logger", "message", fields …, "exception"}; ts is UTC, ISO 8601, ms."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **fields_of(record),
        }
        if exception := self._exception(record):
            line["exception"] = exception
        return _encode(line).decode()

    def _exception(self, record: logging.LogRecord) -> str:
        if not record.exc_info:
            return ""
        return _printable(self.formatException(record.exc_info))


class TextFormatter(logging.Formatter):
    """`time level logger message name=value …`; control characters are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_timestamp(record), record.levelname.lower(), record.name, _message(record)]
        parts += [f"{name}={value}" for name, value in fields_of(record).items()]
        line = " ".join(parts).translate(_ESCAPED)
        if record.exc_info:
            line += "\n" + _printable(self.formatException(record.exc_info))
        return line


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    return _printable(record.getMessage())


def _printable(text: str) -> str:
    """Bounded, and free of lone surrogates, which JSON cannot carry."""
    return text[:_LONGEST_TEXT].encode("utf-8", "backslashreplace").decode()
