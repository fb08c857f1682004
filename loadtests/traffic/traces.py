"""Recorded traffic: when requests came, and how long they and their answers were.

Reads CSV with a header line and JSON objects a line (`.jsonl`), row by row, so that a trace may be
larger than memory. Formats that are known by their columns need no column named: Azure LLM
inference, BurstGPT, Mooncake; of others the first column is the time, the second the length, the
third the answer's. Times may be seconds (numbers) or dates and times; the first row is time 0, and
rows that go back in time are taken to come when the one before them did.
"""

from __future__ import annotations

import csv
import heapq
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any

_MAX_DIGITS = 18


class TraceError(ValueError):
    """The trace cannot be read; says where and why."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What a trace's columns are called; "" is the one in that place. `unit_s`: of times that are
    numbers. `exact_s`: what times are exact to."""

    time: str = ""
    length: str = ""
    output: str = ""
    unit_s: float = 1.0
    exact_s: float = 0.0


AZURE = Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = Columns("Timestamp", "Request tokens", "Response tokens", exact_s=1.0)
MOONCAKE = Columns("timestamp", "input_length", "output_length", unit_s=1e-3)
KNOWN = (AZURE, BURSTGPT, MOONCAKE)


@dataclass(frozen=True, slots=True)
class TraceRow:
    """`at_s`: since the first row. `output` 0: the trace has no such column, or none is wanted."""

    at_s: float
    length: int
    output: int = 0


def read_trace(
    path: Path, columns: Columns | None = None, *, outputs: bool = False
) -> Iterator[TraceRow]:
    """In order of time; `columns`: names that are given win over those of a known format. Raises
    TraceError, as late as the row that is wrong."""
    start: float | None = None
    last = 0.0
    named: Columns | None = None
    for line, row in enumerate(_rows(path), 2 if path.suffix != ".jsonl" else 1):
        try:
            named = named or columns_of(list(row), columns or Columns(), outputs=outputs)
            moment = _seconds(row[named.time], named.unit_s)
            length = _length(row[named.length])
            output = _length(row[named.output]) if outputs else 0
        except (KeyError, IndexError, ValueError) as error:
            raise TraceError(f"{path}:{line}: {_said(error)}") from None
        start = moment if start is None else start
        last = max(last, moment - start)
        yield TraceRow(last, max(1, length), max(1, output) if outputs else 0)
    if start is None:
        raise TraceError(f"{path}: has no rows")


def columns_of(header: list[str], given: Columns, *, outputs: bool = False) -> Columns:
    """Every name filled in. Raises IndexError where there are too few columns."""
    known = next((k for k in KNOWN if {k.time, k.length} <= set(header)), None)
    base = known or Columns(header[0], header[1], header[2] if outputs else "")
    return Columns(
        given.time or base.time,
        given.length or base.length,
        given.output or base.output,
        base.unit_s,
        base.exact_s,
    )


def columns_in(path: Path) -> int:
    """How many columns the first row has, 0 of a file without rows. Raises TraceError."""
    return len(next(_rows(path), {}))


def exact_s(path: Path) -> float:
    """What the times of a trace are exact to, 0 of a format that is not known. Raises TraceError
    where there is nothing to read."""
    header = list(next(_rows(path), {}))
    return next((k.exact_s for k in KNOWN if {k.time, k.length} <= set(header)), 0.0)


def smeared(rows: Iterable[TraceRow], by_s: float, rng: random.Random) -> Iterator[TraceRow]:
    """Each row moved on by up to `by_s`, evenly, in order of the new times. Holds the rows of that
    much time."""
    held: list[tuple[float, int, TraceRow]] = []
    numbers = count()
    for row in rows:
        while held and held[0][0] <= row.at_s:
            yield _moved(*heapq.heappop(held))
        heapq.heappush(held, (row.at_s + rng.uniform(0.0, by_s), next(numbers), row))
    while held:
        yield _moved(*heapq.heappop(held))


def _moved(at_s: float, _: int, row: TraceRow) -> TraceRow:
    return TraceRow(at_s, row.length, row.output)


def read_lengths(path: Path, column: str = "") -> list[int]:
    """One column of a CSV file or of JSON lines; "": the first. Raises TraceError."""
    found = []
    for line, row in enumerate(_rows(path), 2 if path.suffix != ".jsonl" else 1):
        try:
            found.append(max(1, _length(row[column or next(iter(row))])))
        except (KeyError, StopIteration, ValueError) as error:
            raise TraceError(f"{path}:{line}: {_said(error)}") from None
    if not found:
        raise TraceError(f"{path}: has no rows")
    return found


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


def _seconds(value: Any, unit_s: float) -> float:
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
    return moment * unit_s


def _length(value: Any) -> int:
    text = str(value).strip()
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise ValueError(f"{text[:40]!r} is no length; must be a whole number of tokens")
    return int(text)


def _said(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"has no column {error.args[0]!r}"
    if isinstance(error, IndexError | StopIteration):
        return "has too few columns; must have times and lengths"
    return str(error)
