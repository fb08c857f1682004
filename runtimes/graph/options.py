"""The options that all backends of stored graphs share (`openvino`, `onnxruntime`, …).

Each backend adds options of its own. Most models need none: the names in Hugging Face's exports are
known, and a folder declares its pooling. None means: as found in the model.

`layout` declares where images have their channels. It is checked against every input of four axes
and never guessed: a picture with its axes swapped has the same number of values and gives a wrong
answer instead of an error. Channels must be a fixed size; where the other place holds a usual
number of them (1, 3 or 4) and the declared one does not, the declaration is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from runtimes.errors import LoadError
from runtimes.options import AUTO, check_device
from runtimes.types import TensorSpec
from runtimes.warmup import WARM_S

Layout = Literal["NCHW", "NHWC"]
PoolingMode = Literal[
    "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", "splade", "tokens"
]  # `runtimes.folder.MODES`, `SPLADE` and `TOKENS`
AXES = {"NCHW": 1, "NHWC": 3}  # of the channels, the batch being axis 0
USUAL = (1, 3, 4)  # grey, colour, colour with transparency


def check_layout(layout: Layout | None, inputs: Sequence[TensorSpec]) -> None:
    """Raises `LoadError` naming the option and the input."""
    if layout is None:
        return
    images = [spec for spec in inputs if len(spec.shape) == 4]
    if not images:
        shapes = ", ".join(f"'{spec.name}' {list(spec.shape)}" for spec in inputs)
        raise LoadError(f"option 'layout' is {layout}, but no input has four axes: {shapes}")
    other = next(name for name in AXES if name != layout)
    for spec in images:
        channels, theirs = spec.shape[AXES[layout]], spec.shape[AXES[other]]
        stated = f"option 'layout' is {layout}, but input '{spec.name}' is {list(spec.shape)}"
        if channels not in USUAL and theirs in USUAL:
            raise LoadError(f"{stated}, which is {other}: set layout to {other}")
        if channels == -1:
            raise LoadError(f"{stated}: axis {AXES[layout]} holds the channels and must be fixed")


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """Options of a backend that runs a stored graph."""

    # How task `embed` makes one vector of a row, in place of what the model declares.
    pooling: PoolingMode | None = None
    normalize: bool | None = None
    embed_output: str | None = None  # the output with the embedding or the hidden states

    pad_multiple: int = 1  # lengths are padded to a multiple of this
    layout: Layout | None = None  # of images: where the channels are
    warm_s: float = WARM_S  # warm-up starts no new batch after so many seconds
    calibration: str | None = None  # for precision int8 or fp8: the folder of recorded rows
    short_calibration: bool = False  # accept a calibration without rows of the longest bucket
    # Operations that compute in fp32 at any precision, as `headrace verify --layers` proposes them.
    keep_fp32: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.pad_multiple < 1:
            raise ValueError(f"option 'pad_multiple' is {self.pad_multiple}, it must be 1 or more")
        if self.warm_s < 0:
            raise ValueError(f"option 'warm_s' is {self.warm_s}, it must be 0 or more")

    def unfit(self, precision: str) -> str | None:
        """Why the backend cannot compute in this precision with these options; None if it can."""
        return None


@dataclass(frozen=True, slots=True)
class DeviceOptions(GraphOptions):
    """Options of a backend of stored graphs that can use a GPU."""

    device: str = AUTO  # see `runtimes.options`

    def __post_init__(self) -> None:
        GraphOptions.__post_init__(self)
        check_device(self.device)
