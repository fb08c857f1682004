"""The lengths that a model is profiled with.

A file of lengths (one a line), a recording (CSV or JSON lines with a header's names), or a
scenario; without any the ragged mix that Headrace's own figures use, scaled to the model's longest
row. What the model would refuse is left out and counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from runtimes.types import Limits

DRAWN = 4096
_MIX_LONGEST = 512


class WrongArguments(ValueError):
    """The arguments name what is not there; the message says what is."""


@dataclass(frozen=True, slots=True)
class RowLengths:
    """`rows`: those the model takes, tokens; `all`: with those that are too long; `said`: where
    they come from; `given`: by the user, so they may be acted on."""

    rows: tuple[int, ...]
    all: tuple[int, ...]
    said: str
    given: bool

    @property
    def mean(self) -> float:
        return sum(self.rows) / len(self.rows)

    @property
    def median(self) -> int:
        return sorted(self.rows)[len(self.rows) // 2]


def lengths_for(path: Path | None, longest: int, rng: Random) -> RowLengths:
    """Raises WrongArguments, and what reading a trace or a scenario raises."""
    if path is None:
        return RowLengths(*(_mix(longest, rng),) * 2, "a made-up ragged mix", False)
    found = _read(path, rng)
    if not found:
        raise WrongArguments(f"{path}: holds no lengths")
    rows = tuple(length for length in found if length <= longest)
    if not rows:
        raise WrongArguments(
            f"{path}: all {len(found)} rows are longer than lengths.max ({longest}); "
            "raise lengths.max or give other lengths"
        )
    return RowLengths(rows, found, str(path), True)


def _mix(longest: int, rng: Random) -> tuple[int, ...]:
    from loadtests.traffic.workload import ragged_lengths

    drawn = ragged_lengths(DRAWN, rng)
    return tuple(max(1, round(length * longest / _MIX_LONGEST)) for length in drawn)


def _read(path: Path, rng: Random) -> tuple[int, ...]:
    from loadtests.traffic import scenario_file
    from loadtests.traffic.traces import columns_in, read_lengths, read_trace

    if path.suffix in (".csv", ".jsonl"):
        if columns_in(path) == 1:
            return tuple(read_lengths(path))
        return tuple(row.length for row in read_trace(path))
    if path.suffix in (".yaml", ".yml") or scenario_file.located(path) != path:
        return _of_scenario(scenario_file.located(path), rng)
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongArguments(f"--lengths {path}: cannot be read: {error}") from None
    return tuple(_length(path, place, word) for place, word in enumerate(lines, start=1))


def _length(path: Path, place: int, word: str) -> int:
    if not word.isdecimal() or not 1 <= int(word) <= 1 << 30:
        raise WrongArguments(f"{path}:{place}: is {word!r}; must be a whole number of at least 1")
    return int(word)


def _of_scenario(path: Path, rng: Random) -> tuple[int, ...]:
    from loadtests.traffic import scenario_file
    from loadtests.traffic.plan import length_drawer

    scenario = scenario_file.load(path)
    drawers = [
        length_drawer(scenario.lengths_of(tenant), path.parent)
        for _, tenant in scenario.callers()
        if scenario.lengths_of(tenant).column is None
    ]
    if not drawers:
        raise WrongArguments(f"{path}: its lengths are recorded; give the recording itself")
    return tuple(draw(rng) for draw in drawers for _ in range(DRAWN // len(drawers)))


def as_taken(rows: Sequence[int], limits: Limits) -> tuple[int, ...]:
    """The lengths as the loaded model has them: of its next shape where rows have shapes of their
    own, 1 where they have no length."""
    if limits.row_shapes is not None:
        shapes = limits.row_shapes.lengths
        return tuple(shapes[min(bisect_left(shapes, row), len(shapes) - 1)] for row in rows)
    return tuple(rows) if limits.length_input else (1,) * len(rows)


def share_longer(lengths: Sequence[int], bound: int) -> float:
    return sum(length > bound for length in lengths) / max(1, len(lengths))
