"""Computes the tensors inside an ONNX graph with ONNX Runtime, without graph optimisations.

In a quantised graph, these are also the tensors between the conversions. The effect of rounding an
operation's inputs shows in its output, which has the name that it has in the graph before
quantisation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from runtimes.layers import TracedTensor
from runtimes.onnx import model as onnx_model
from runtimes.onnx import session as onnxruntime_session
from runtimes.onnxruntime.runtime import ONNXRuntimeRuntime
from runtimes.types import RuntimeSettings

Array = np.ndarray[Any, Any]
CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")
REAL = ("tensor(float16)", "tensor(float)", "tensor(double)")


def trace(settings: RuntimeSettings, arrays: Mapping[str, Array]) -> list[TracedTensor]:
    """See `runtimes.layers.trace`."""
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
    return [_layer(name, made, stored, found[name]) for name in made if name in found]


def _layer(name: str, made: Mapping[str, Any], stored: set[str], value: Array) -> TracedTensor:
    inputs = tuple(each for each in made[name].input if each and each not in stored)
    node = _computed_by(name, made)
    if node is None:
        return TracedTensor(name, "", made[name].op_type, inputs, value)
    return TracedTensor(name, node.name or node.output[0], node.op_type, inputs, value)


def _computed_by(name: str, made: Mapping[str, Any]) -> Any:
    """The operation that computes a tensor, before a quantised graph's conversions; None if the
    conversions are of a weight or of an input."""
    node = made.get(name)
    while node is not None and node.op_type in CONVERSIONS:
        node = made.get(node.input[0])
    return node
