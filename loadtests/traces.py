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
from pathlib import Path
from typing import Any


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
            length = int(row[length_column or columns[1]])
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise TraceError(f"{path}:{line}: {_said(error)}") from None
        start = moment if start is None else start
        last = max(last, moment - start)
        yield last, max(1, length)


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            yield from _objects(stream) if path.suffix == ".jsonl" else csv.DictReader(stream)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {(error.strerror or '').lower()}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: is no UTF-8 text") from None


def _objects(stream: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    for line in stream:
        if line.strip():
            row = json.loads(line)
            yield row if isinstance(row, dict) else {}


def _seconds(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        text = str(value).strip()
        # Recorders write more digits of a second than Python takes.
        head, point, digits = text.partition(".")
        return datetime.fromisoformat(head + point + digits[:6]).timestamp()


def _said(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"has no column {error.args[0]!r}"
    if isinstance(error, IndexError):
        return "has too few columns; must have times and lengths"
    return str(error)
