"""The tensors inside a graph, for one row.

`trace` runs the graph that a backend has staged, at the settings' precision, with every tensor of
real numbers as an output, and gives them in the order they are computed. Names are the graph's own,
so that two traces of one artifact can be laid side by side. Outputs in between keep a backend from
fusing what it otherwise would: the numbers are near what it serves, and not exactly those.

For a desk, not for serving: all tensors of the row are in memory at once.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from runtimes.errors import LoadError
from runtimes.types import RuntimeSettings

Array = np.ndarray[Any, Any]
TRACERS: Mapping[str, str] = {
    "onnxruntime": "runtimes.onnxruntime.layers",
    "openvino": "runtimes.openvino.layers",
    "torch": "runtimes.torch.layers",
}


@dataclass(frozen=True, slots=True)
class TracedTensor:
    """A tensor and the operation that made it. `node`: its name, as the option `keep_fp32` takes
    it, "" where none could be kept. `inputs`: names of the tensors it was made of, stored weights
    left out."""

    name: str
    node: str
    kind: str
    inputs: tuple[str, ...]
    value: Array


def trace(settings: RuntimeSettings, arrays: Mapping[str, Array]) -> list[TracedTensor]:
    """`arrays`: every input, [1, ...]. Raises `LoadError` for a runtime without named layers, and
    what loading raises."""
    if settings.runtime not in TRACERS:
        raise LoadError(
            f"{settings.runtime} shows no layers; {', '.join(TRACERS)} do, also of this artifact"
        )
    tracer = importlib.import_module(TRACERS[settings.runtime])
    return cast(list[TracedTensor], tracer.trace(settings, arrays))
