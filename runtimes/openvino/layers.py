"""Computes the tensors inside a staged OpenVINO model, by making every operation's first output a
result.

A tensor has the name that the model gives it (such as the ONNX graph's), else its operation's name.
A stored model keeps both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runtimes.layers import TracedTensor
from runtimes.openvino.library import library
from runtimes.openvino.runtime import HINTS, OpenVINORuntime
from runtimes.types import RuntimeSettings

Array = np.ndarray[Any, Any]
PLAIN = ("Parameter", "Constant", "Result")


def trace(settings: RuntimeSettings, arrays: Mapping[str, Array]) -> list[TracedTensor]:
    """See `runtimes.layers.trace`."""
    core = library().Core()
    model = core.read_model(str(OpenVINORuntime(settings).staged() / "model.xml"))
    nodes = [node for node in model.get_ordered_ops() if _shown(node)]
    names = {node.get_friendly_name(): _name(node) for node in nodes}
    for node in nodes:
        # Without this, operations that lead only to outputs stay in fp32: here, all of them.
        node.get_rt_info()["enforceBF16evenForGraphTail"] = "YES"
        node.output(0).tensor.add_names({_name(node)})
        model.add_outputs(node.output(0))
    hint = {"INFERENCE_PRECISION_HINT": HINTS[settings.precision]}
    request = core.compile_model(model, "CPU", hint).create_infer_request()
    request.infer({name: np.array(array) for name, array in arrays.items()})
    return [_layer(node, request, names) for node in nodes]


def _shown(node: Any) -> bool:
    return node.get_type_name() not in PLAIN and node.get_output_element_type(0).is_real()


def _name(node: Any) -> str:
    return str(min(node.output(0).get_names(), default=node.get_friendly_name()))


def _layer(node: Any, request: Any, names: Mapping[str, str]) -> TracedTensor:
    own = node.get_friendly_name()
    value = np.array(request.get_tensor(names[own]).data)
    sources = (port.get_node().get_friendly_name() for port in node.input_values())
    inputs = tuple(names[each] for each in sources if each in names)
    return TracedTensor(names[own], own, node.get_type_name(), inputs, value)
