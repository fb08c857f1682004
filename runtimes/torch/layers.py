"""Computes the tensors inside a torch model, by running its graph node by node.

Tensors have the names of the graph's nodes, which are the same at every precision. No operation can
be kept in fp32, because torch computes the whole model in one type. The model runs on the CPU,
whatever device serves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import fx

from runtimes.errors import LoadError
from runtimes.layers import TracedTensor
from runtimes.source import inspect
from runtimes.torch import model as torch_model
from runtimes.types import RuntimeSettings

Array = np.ndarray[Any, Any]
COMPUTED = ("call_function", "call_method", "call_module")


def trace(settings: RuntimeSettings, arrays: Mapping[str, Array]) -> list[TracedTensor]:
    """See `runtimes.layers.trace`."""
    if settings.source is None:
        raise LoadError("the torch runtime needs a source: a model folder or a .pt2 archive")
    source = inspect(settings.source, settings.cache_dir)
    folder = source.path.is_dir()
    made = (torch_model.from_folder if folder else torch_model.from_archive)(source, settings)
    tensors = [torch.from_numpy(np.array(arrays[spec.name])) for spec in made.limits.inputs]
    tracing = _Tracing(made.module)
    with torch.inference_mode():
        tracing.run(*tensors)
    return tracing.layers


class _Tracing(fx.Interpreter):
    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.layers: list[TracedTensor] = []

    def run_node(self, node: fx.Node) -> Any:
        value = super().run_node(node)
        if node.op in COMPUTED and isinstance(value, torch.Tensor) and value.is_floating_point():
            inputs = tuple(each.name for each in node.all_input_nodes if each.op in COMPUTED)
            array = value.float().cpu().numpy()
            self.layers.append(TracedTensor(node.name, "", _kind(node), inputs, array))
        return value


def _kind(node: fx.Node) -> str:
    """The node's function, and the name of its first weight."""
    name = getattr(node.target, "__name__", str(node.target))
    weights = [str(each.target) for each in node.all_input_nodes if each.op == "get_attr"]
    return " ".join([name, *weights[:1]])
