"""The torch backend's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runtimes import options
from runtimes.graph.options import Layout, PoolingMode
from runtimes.warmup import WARM_S


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """See docs/runtimes.md."""

    device: str = options.AUTO  # see `runtimes.options`
    pooling: PoolingMode | None = None  # as in `GraphOptions`
    normalize: bool | None = None
    mode: Literal["eager", "compile", "cuda_graphs"] = "eager"  # how the network runs
    layout: Layout | None = None  # the axis of images' channels
    channels_last: bool = False  # keep channels last in memory
    pinned: bool = True  # copy to and from the GPU through pinned host memory
    expandable_segments: bool = True  # GPU memory grows in place instead of in blocks
    gpu_memory_mib: int | None = None  # the most that its allocator takes of the GPU; None: all
    warm_s: float = WARM_S  # warm-up starts no new batch after so many seconds

    def __post_init__(self) -> None:
        options.check_device(self.device)
        options.check_gpu_memory(self.gpu_memory_mib, self.device)
        if self.mode == "cuda_graphs" and self.device == "cpu":
            raise ValueError("option 'mode' is cuda_graphs, but option 'device' is cpu")
        if self.channels_last and self.layout != "NCHW":
            raise ValueError("option 'channels_last' needs option 'layout' NCHW")
        if self.warm_s < 0:
            raise ValueError(f"option 'warm_s' is {self.warm_s}; it must be 0 or more")
