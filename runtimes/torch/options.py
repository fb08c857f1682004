"""The torch backend's options, beside the common settings.

Read without torch, so that a file can be checked where it is not installed. What two options say
together is checked here as well; what the machine or the model lacks is found at the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runtimes import device
from runtimes.graph.layout import Layout
from runtimes.warmup import WARM_S


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """device: see `runtimes.device`. mode: how the network is run. layout: where images have their
    channels; channels_last: keep them last in memory. pinned: host buffers that a GPU copies from
    and to without the processor. expandable_segments: GPU memory grows in place instead of in
    blocks. warm_s: warm-up starts no new batch after so many seconds."""

    device: str = device.AUTO
    mode: Literal["eager", "compile", "cuda_graphs"] = "eager"
    layout: Layout | None = None
    channels_last: bool = False
    pinned: bool = True
    expandable_segments: bool = True
    warm_s: float = WARM_S

    def __post_init__(self) -> None:
        device.check(self.device)
        if self.mode == "cuda_graphs" and self.device == "cpu":
            raise ValueError("option 'mode' is cuda_graphs, which option 'device' cpu has not")
        if self.channels_last and self.layout != "NCHW":
            raise ValueError("option 'channels_last' needs option 'layout' NCHW")
        if self.warm_s < 0:
            raise ValueError(f"option 'warm_s' is {self.warm_s}, it must be 0 or more")
