"""Which batches run as a graph that the device captured beforehand?

A captured graph replays one fixed shape with no work by the processor. `CapturedShapes` captures
each shape that warm-up runs, largest first so that the graphs share the memory that the first one
took, and replays the smallest that holds a batch. A shape that was not captured, because warm-up's
time was up or the batch is larger than any, has none and is run by its caller as it comes.

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

    def shape_for(self, rows: int, length: int) -> Shape:
        """The shape to pad a batch to: the smallest captured one that holds it, else its own."""
        return fitting(rows, length, tuple(self._kept)) or (rows, length)

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
