"""What may a settings file say to a backend that runs a stored graph, beside the common settings?

These are the options that `openvino` and `onnxruntime` share; each adds its own. Most models need
none: the names that Hugging Face exports use are found by themselves, and a folder declares its
pooling. None means as found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """length_input, length_axis: whose axis is a row's length (`input_ids` where there is one; the
    batch is axis 0). Every input that is dynamic on that axis is as long. mask_input: 1 for real
    tokens, made when left out. max_length: the longest row the graph can take, tokens.
    pooling, normalize: how task `embed` makes one vector, over what the model declares.
    embed_output: which of several outputs holds the embedding or the hidden states.
    pad_multiple: lengths are padded up to a multiple of this. num_threads: 0 for what the settings
    or the control group say. warm_s: warm-up starts no new batch after so many seconds.
    """

    length_input: str | None = None
    length_axis: int = 1
    mask_input: str | None = None
    max_length: int | None = None
    pooling: Literal["mean", "cls"] | None = None
    normalize: bool | None = None
    embed_output: str | None = None
    pad_multiple: int = 1
    num_threads: int = 0
    warm_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("length_axis", "pad_multiple"):
            if getattr(self, name) < 1:
                raise ValueError(f"option '{name}' is {getattr(self, name)}, it must be 1 or more")
        for name in ("num_threads", "warm_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"option '{name}' is {getattr(self, name)}, it must be 0 or more")
        if self.max_length is not None and self.max_length < 1:
            raise ValueError(f"option 'max_length' is {self.max_length}, it must be 1 or more")
