"""The options that all backends of stored graphs have, beside the common settings.

These are the options that `openvino` and `onnxruntime` share; each adds its own. Most models need
none: the names that Hugging Face exports use are found by themselves, and a folder declares its
pooling. None means as found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runtimes import device
from runtimes.graph.layout import Layout
from runtimes.warmup import WARM_S


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """pooling, normalize: how task `embed` makes one vector, over what the model declares.
    embed_output: which of several outputs holds the embedding or the hidden states.
    pad_multiple: lengths are padded up to a multiple of this. layout: where images have their
    channels. warm_s: warm-up starts no new batch after so many seconds. calibration: of precision
    int8, the folder of recorded rows; short_calibration: also where no long ones are among them.
    keep_fp32: names of operations that compute in fp32 whatever the precision is, as `headrace
    verify --layers` proposes them.
    """

    pooling: Literal["mean", "cls"] | None = None
    normalize: bool | None = None
    embed_output: str | None = None
    pad_multiple: int = 1
    layout: Layout | None = None
    warm_s: float = WARM_S
    calibration: str | None = None
    short_calibration: bool = False
    keep_fp32: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.pad_multiple < 1:
            raise ValueError(f"option 'pad_multiple' is {self.pad_multiple}, it must be 1 or more")
        if self.warm_s < 0:
            raise ValueError(f"option 'warm_s' is {self.warm_s}, it must be 0 or more")


@dataclass(frozen=True, slots=True)
class DeviceOptions(GraphOptions):
    """Of backends that can use a GPU. device: see `runtimes.device`."""

    device: str = device.AUTO

    def __post_init__(self) -> None:
        GraphOptions.__post_init__(self)
        device.check(self.device)
