"""What was recorded traffic: when did requests come, and how long were they?

Reads CSV with a header line and JSON objects a line (`.jsonl`), row by row, so that a trace may be
larger than memory. Times may be seconds (numbers) or dates and times; the first row is time 0, and
rows that go back in time are taken to come when the one before them did.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any

_MOST_DIGITS = 18


class TraceError(ValueError):
    """The trace cannot be read; says where and why."""


def read_trace(
    path: Path, time_column: str = "", length_column: str = ""
) -> Iterator[tuple[float, int]]:
    """(seconds since the first row, length) in order. An empty name is the first column for times
    and the second for lengths. Raises TraceError, as late as the row that is wrong."""
    start: float | None = None
    last = 0.0
    for line, row in enumerate(_rows(path), 2 if path.suffix != ".jsonl" else 1):
        try:
            columns = list(row)
            moment = _seconds(row[time_column or columns[0]])
            length = _length(row[length_column or columns[1]])
        except (KeyError, IndexError, ValueError) as error:
            raise TraceError(f"{path}:{line}: {_said(error)}") from None
        start = moment if start is None else start
        last = max(last, moment - start)
        yield last, max(1, length)
    if start is None:
        raise TraceError(f"{path}: has no rows")


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            yield from _objects(stream) if path.suffix == ".jsonl" else _columns(stream)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {(error.strerror or '').lower()}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: is no UTF-8 text") from None


def _objects(stream: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """What is no object is a row without columns, so that it is found wrong where it stands."""
    for line in stream:
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            yield row if isinstance(row, dict) else {}


def _columns(stream: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """As `_objects`; what cannot be parsed ends the trace with such a row."""
    try:
        yield from csv.DictReader(stream)
    except csv.Error:
        yield {}


def _seconds(value: Any) -> float:
    text = str(value).strip()
    try:
        moment = float(text)
    except ValueError:
        # Recorders write more digits of a second than Python takes.
        head, point, digits = text.partition(".")
        try:
            return datetime.fromisoformat(head + point + digits[:6]).timestamp()
        except (ValueError, OverflowError):
            raise ValueError(f"{text[:40]!r} is no time") from None
    if not isfinite(moment):
        raise ValueError(f"{text!r} is no time")
    return moment


def _length(value: Any) -> int:
    text = str(value).strip()
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise ValueError(f"{text[:40]!r} is no length; must be a whole number of tokens")
    return int(text)


def _said(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"has no column {error.args[0]!r}"
    if isinstance(error, IndexError):
        return "has too few columns; must have times and lengths"
    return str(error)
