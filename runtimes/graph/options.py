"""The options that all backends of stored graphs share (`openvino`, `onnxruntime`, …).

Each backend adds options of its own. Most models need none: the names in Hugging Face's exports are
known, and a folder declares its pooling. None means: as found in the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runtimes import device
from runtimes.graph.layout import Layout
from runtimes.warmup import WARM_S


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """Options of a backend that runs a stored graph."""

    # How task `embed` makes one vector of a row, in place of what the model declares.
    pooling: Literal["mean", "cls"] | None = None
    normalize: bool | None = None
    embed_output: str | None = None  # the output with the embedding or the hidden states

    pad_multiple: int = 1  # lengths are padded to a multiple of this
    layout: Layout | None = None  # of images: where the channels are
    warm_s: float = WARM_S  # warm-up starts no new batch after so many seconds
    calibration: str | None = None  # for precision int8: the folder of recorded rows
    short_calibration: bool = False  # accept a calibration without rows of the longest bucket
    # Operations that compute in fp32 at any precision, as `headrace verify --layers` proposes them.
    keep_fp32: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.pad_multiple < 1:
            raise ValueError(f"option 'pad_multiple' is {self.pad_multiple}, it must be 1 or more")
        if self.warm_s < 0:
            raise ValueError(f"option 'warm_s' is {self.warm_s}, it must be 0 or more")


@dataclass(frozen=True, slots=True)
class DeviceOptions(GraphOptions):
    """Options of a backend of stored graphs that can use a GPU."""

    device: str = device.AUTO  # see `runtimes.device`

    def __post_init__(self) -> None:
        GraphOptions.__post_init__(self)
        device.check(self.device)
