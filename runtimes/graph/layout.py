"""The check that images have their channels where the settings say.

`layout` is a declaration, `NCHW` or `NHWC`, checked against every input of four axes and never
guessed: a picture with its axes swapped has the same number of values and gives a wrong answer
instead of an error. Channels must be a fixed size; where the other place holds a usual number of
them (1, 3 or 4) and the declared one does not, the declaration is wrong.

It moves no data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from runtimes.errors import LoadError
from runtimes.types import TensorSpec

Layout = Literal["NCHW", "NHWC"]
AXES = {"NCHW": 1, "NHWC": 3}  # of the channels, the batch being axis 0
USUAL = (1, 3, 4)  # grey, colour, colour with transparency


def check(layout: Layout | None, inputs: Sequence[TensorSpec]) -> None:
    """Raises `LoadError` naming the option and the input."""
    if layout is None:
        return
    images = [spec for spec in inputs if len(spec.shape) == 4]
    if not images:
        shapes = ", ".join(f"'{spec.name}' {list(spec.shape)}" for spec in inputs)
        raise LoadError(f"option 'layout' is {layout}, but no input has four axes: {shapes}")
    for spec in images:
        _check_one(layout, spec)


def _check_one(layout: Layout, spec: TensorSpec) -> None:
    other = next(name for name in AXES if name != layout)
    channels, theirs = spec.shape[AXES[layout]], spec.shape[AXES[other]]
    stated = f"option 'layout' is {layout}, but input '{spec.name}' is {list(spec.shape)}"
    if channels not in USUAL and theirs in USUAL:
        raise LoadError(f"{stated}, which is {other}: set layout to {other}")
    if channels == -1:
        raise LoadError(f"{stated}: axis {AXES[layout]} holds the channels and must be fixed")
