"""Batch shapes that run as graphs which the device captured beforehand.

A captured graph replays one fixed shape with no work by the processor. `CapturedShapes` captures
shapes that it is told, largest first so that the graphs share the memory that the first one took,
and replays the smallest that holds a batch. A batch that no captured shape holds is run by its
caller as it comes.

It knows no library: a capture is a callable that gives a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from runtimes.shapes import Shape, fitting

Replay = TypeVar("Replay")


class CapturedShapes(Generic[Replay]):
    """`wanted`: shapes to capture; `capture(shape)` captures one. Used by one thread at a time."""

    def __init__(self, wanted: Sequence[Shape], capture: Callable[[Shape], Replay]) -> None:
        self._wanted = frozenset(wanted)
        self._capture = capture
        self._kept: dict[Shape, Replay] = {}

    def shape_for(self, rows: int, length: int, *, same_length: bool = False) -> Shape:
        """The shape to pad a batch to: the smallest captured one that holds it, else its own.
        `same_length`: its rows are padded already, and only more rows can be added."""
        kept = [shape for shape in self._kept if not same_length or shape[1] == length]
        return fitting(rows, length, kept) or (rows, length)

    def replay_of(self, shape: Shape) -> Replay | None:
        return self._kept.get(shape)

    def capture(self, shape: Shape) -> None:
        """Nothing for a shape that is not wanted or has been captured."""
        if shape in self._wanted and shape not in self._kept:
            self._kept[shape] = self._capture(shape)

    def clear(self) -> None:
        self._kept.clear()
        self._wanted = frozenset()

    @property
    def captured(self) -> tuple[Shape, ...]:
        return tuple(sorted(self._kept))
