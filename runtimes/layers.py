"""The tensors inside a graph, for one row.

`trace` runs the graph that a backend has staged, at the settings' precision, with every tensor of
real numbers as an output, and gives them in the order they are computed. Names are the graph's own,
so that two traces of one artifact can be laid side by side. Outputs in between keep a backend from
fusing what it otherwise would: the numbers are near what it serves, and not exactly those. In a
quantised graph, the effect of rounding an operation's inputs shows in its output.

For a desk, not for serving: all tensors of the row are in memory at once.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from runtimes import catalog
from runtimes.errors import LoadError
from runtimes.onnx import model as onnx_model
from runtimes.onnx import session as onnxruntime_session
from runtimes.onnxruntime.runtime import ONNXRuntimeRuntime
from runtimes.openvino.model import library
from runtimes.openvino.runtime import HINTS, OpenVINORuntime
from runtimes.types import RuntimeSettings

Array = np.ndarray[Any, Any]
RUNTIMES = ("onnxruntime", "openvino", "torch")  # that show their layers
CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")
REAL = ("tensor(float16)", "tensor(float)", "tensor(double)")
PLAIN = ("Parameter", "Constant", "Result")  # OpenVINO's nodes that compute nothing


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
    if settings.task == catalog.RERANK:
        if catalog.token_vectors(settings.runtime, settings.source, settings.options) is not None:
            raise LoadError(
                f"{settings.source} scores pairs by the vectors of their tokens: its layers show "
                "with task embed"
            )
        if catalog.pair_prompt(settings.runtime, settings.source) is None:
            settings = replace(settings, task="classify")
    if settings.runtime == "onnxruntime":
        return _trace_onnx(settings, arrays)
    if settings.runtime == "openvino":
        return _trace_openvino(settings, arrays)
    if settings.runtime == "torch":
        module = importlib.import_module("runtimes.torch.model")  # it imports torch
        return cast(list[TracedTensor], module.trace(settings, arrays))
    raise LoadError(
        f"{settings.runtime} shows no layers; {', '.join(RUNTIMES)} do, also of this artifact"
    )


def _trace_onnx(settings: RuntimeSettings, arrays: Mapping[str, Array]) -> list[TracedTensor]:
    model = ONNXRuntimeRuntime(settings).graph()
    made = {value: node for node in model.graph.node for value in node.output if value}
    onnx_model.expose(model)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "layers.onnx"
        onnx_model.save(model, file)
        session = onnxruntime_session.plain(file)
        names = [value.name for value in session.get_outputs() if value.type in REAL]
        wanted = [name for name in names if name in made]
        known = {value.name for value in session.get_inputs()}
        values = session.run(wanted, {n: array for n, array in arrays.items() if n in known})
    stored = {weight.name for weight in model.graph.initializer}
    found = dict(zip(wanted, values, strict=True))
    layers = []
    for name in (each for each in made if each in found):
        inputs = tuple(each for each in made[name].input if each and each not in stored)
        node = made.get(name)  # that computes it, before a quantised graph's conversions
        while node is not None and node.op_type in CONVERSIONS:
            node = made.get(node.input[0])  # None if they are of a weight or of an input
        own = (node.name or node.output[0]) if node is not None else ""
        layers.append(TracedTensor(name, own, (node or made[name]).op_type, inputs, found[name]))
    return layers


def _trace_openvino(settings: RuntimeSettings, arrays: Mapping[str, Array]) -> list[TracedTensor]:
    core = library().Core()
    model = core.read_model(str(OpenVINORuntime(settings).staged() / "model.xml"))
    nodes = [
        node
        for node in model.get_ordered_ops()
        if node.get_type_name() not in PLAIN and node.get_output_element_type(0).is_real()
    ]
    names = {node.get_friendly_name(): _name(node) for node in nodes}
    for node in nodes:
        # Without this, operations that lead only to outputs stay in fp32: here, all of them.
        node.get_rt_info()["enforceBF16evenForGraphTail"] = "YES"
        node.output(0).tensor.add_names({_name(node)})
        model.add_outputs(node.output(0))
    hint = {"INFERENCE_PRECISION_HINT": HINTS[settings.precision]}
    request = core.compile_model(model, "CPU", hint).create_infer_request()
    request.infer({name: np.array(array) for name, array in arrays.items()})
    layers = []
    for own, node in ((each.get_friendly_name(), each) for each in nodes):
        value = np.array(request.get_tensor(names[own]).data)
        sources = (port.get_node().get_friendly_name() for port in node.input_values())
        inputs = tuple(names[each] for each in sources if each in names)
        layers.append(TracedTensor(names[own], own, node.get_type_name(), inputs, value))
    return layers


def _name(node: Any) -> str:
    return str(min(node.output(0).get_names(), default=node.get_friendly_name()))
