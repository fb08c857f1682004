"""The recorded rows from which the ranges of quantisation to int8 and fp8 are taken.

They come from `headrace record` (real traffic), or from an `.npz` of the same form. If no long row
is among them, values that only long rows reach are cut off, and average errors would not show it.
So a calibration without rows of the longest length bucket is refused, unless the settings insist
(`short_calibration`); then only verification can find the error.

This module chooses rows, spread evenly over the length buckets, 256 at most. It measures no ranges.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runtimes import ragged_file
from runtimes.errors import LoadError
from runtimes.graph.bert import ATTENTION_MASK, INPUT_IDS, TOKEN_TYPES
from runtimes.graph.options import GraphOptions
from runtimes.staging import digest_of
from runtimes.types import RuntimeSettings

PRECISIONS = ("int8", "fp8")  # that are calibrated
MIN_ROWS = 32
MIN_LONGEST = 4
MAX_ROWS = 256

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class GraphInput:
    """An input of the graph to be calibrated: its name, numpy type and number of axes."""

    name: str
    dtype: np.dtype[Any]
    axes: int


def missing(precision: str, options: GraphOptions) -> str | None:
    """What is wrong with the options for this precision, None where nothing is."""
    if precision in PRECISIONS and options.calibration is None:
        return (
            f"precision {precision} needs the option calibration: a folder that `headrace record` "
            "wrote; ranges are never taken from made-up rows"
        )
    if precision not in PRECISIONS and options.calibration is not None:
        return f"option 'calibration' is for precision {' or '.join(PRECISIONS)}, not {precision}"
    return None


def check(precision: str, options: GraphOptions) -> None:
    """Raises `LoadError` for what `missing` finds."""
    wrong = missing(precision, options)
    if wrong:
        raise LoadError(wrong)


def identity(options: GraphOptions, settings: RuntimeSettings) -> str:
    """What a staged entry depends on: the rows' content and the buckets they are spread over; ""
    where there is no calibration. Raises `LoadError`."""
    if options.calibration is None:
        return ""
    file = file_of(options.calibration)
    contents = digest_of([file], file.parent, settings.cache_dir)
    return f"{contents} {options.short_calibration} {settings.edges} {settings.max_length}"


def file_of(named: str) -> Path:
    """The file of rows. Raises `LoadError` where it is not there."""
    path = Path(named).expanduser()
    file = path / ragged_file.FILE if path.is_dir() else path
    if not file.is_file():
        raise LoadError(
            f"option 'calibration': {file} does not exist; `headrace record FILE MODEL` writes "
            "it once the model has recorded traffic"
        )
    return file


def rows(
    settings: RuntimeSettings, options: GraphOptions, inputs: Sequence[GraphInput]
) -> list[dict[str, Array]]:
    """Feeds of one row each, [1, ...], every input of the graph. Raises `LoadError`."""
    assert options.calibration is not None
    file = file_of(options.calibration)
    columns = ragged_file.read(file)
    if settings.task == "embed" and any(row.any() for row in columns.get(TOKEN_TYPES, ())):
        raise LoadError(
            f"{file} has rows of two texts each, and the model reads one text at a time: record a "
            "model of the same folder with task embed"
        )
    known = [each.name for each in inputs]
    for name in columns:
        if name not in known:
            raise LoadError(f"{file} has rows of '{name}'; the model takes {', '.join(known)}")
    lengths = _lengths(settings, columns)
    if len(lengths) < MIN_ROWS:
        raise LoadError(f"{file} has {len(lengths)} rows, a calibration takes {MIN_ROWS} at least")
    longest = settings.max_length or max(settings.edges, default=1)
    below = [edge for edge in settings.edges if edge < longest]
    has_lengths = settings.row_shapes is not None or set(lengths) != {1}
    enough = sum(length > below[-1] for length in lengths) if below else 0
    if not options.short_calibration and has_lengths and below and enough < MIN_LONGEST:
        raise LoadError(
            f"{file}: of {len(lengths)} rows {enough or 'none'} are longer than {below[-1]} tokens "
            f"(the longest has {max(lengths)}), and the model takes {longest}: what only long rows "
            f"reach would be cut off. Record longer ones, or set lengths.max to {max(lengths)}, or "
            "the option short_calibration to true and let verification decide"
        )
    chosen = _spread(lengths, settings.edges)
    return [_feed(columns, row, lengths[row], inputs, settings) for row in chosen]


def _lengths(settings: RuntimeSettings, columns: Mapping[str, list[Array]]) -> list[int]:
    """Of each row; 1 where the model's rows have no length."""
    if settings.row_shapes is not None:
        known = {shape: length for length, shape in settings.row_shapes.shapes}
        shaped = columns.get(settings.row_shapes.input or "") or next(iter(columns.values()), [])
        return [known.get(row.shape, 1) for row in shaped]
    measured = columns.get(settings.length_input or INPUT_IDS)
    axis = (settings.length_axis or 1) - 1
    if measured is None:
        return [1] * len(next(iter(columns.values()), []))
    return [row.shape[axis] if row.ndim > axis else 1 for row in measured]


def _spread(lengths: Sequence[int], edges: Sequence[int]) -> list[int]:
    """Places of the rows: buckets in turn, from each in its order."""
    tops = sorted(edges) or [1]
    by_bucket: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        by_bucket.setdefault(min(bisect_left(tops, length), len(tops) - 1), []).append(row)
    chosen: list[int] = []
    for turn in range(len(lengths)):
        chosen += [places[turn] for places in by_bucket.values() if turn < len(places)]
        if len(chosen) >= MAX_ROWS:
            break
    return chosen[:MAX_ROWS]


def _feed(
    columns: Mapping[str, list[Array]],
    row: int,
    length: int,
    inputs: Sequence[GraphInput],
    settings: RuntimeSettings,
) -> dict[str, Array]:
    mask = settings.mask_input or ATTENTION_MASK
    feed = {}
    for each in inputs:
        if each.name in columns:
            feed[each.name] = columns[each.name][row][None].astype(each.dtype)
        elif each.axes == 2:
            fill = np.ones if each.name == mask else np.zeros
            feed[each.name] = fill((1, length), each.dtype)
        else:
            raise LoadError(f"the calibration has no rows of input '{each.name}'")
    return feed
