"""Converts an ONNX graph to float16 or bfloat16, for a backend that takes types from the graph.

Every float32 tensor between two operations becomes half as wide, and so do the weights, values
outside the format's range being its largest ones. Inputs and outputs of the model stay float32,
with a Cast inside. So do operations that need more range or precision than the format has (sums,
roots, quotients), and sums and products of their results alone: a variance plus 1e-12 is nothing in
float16.

A graph with branches, loops or functions of its own is refused. Changes no operation, and knows no
runtime: ONNX Runtime's own converter serves that backend. Source: the ONNX operators' types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from runtimes.errors import LoadError
from runtimes.onnx import model as onnx_model

FORMATS = {"fp16": (10, np.dtype(np.float16)), "bf16": (16, np.dtype(ml_dtypes.bfloat16))}
KEPT = frozenset(
    {
        *("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceProd"),
        *("ReduceLogSum", "ReduceLogSumExp", "CumSum", "LpNormalization", "Det", "Hardmax"),
        *("Sqrt", "Reciprocal", "Div", "Pow", "Exp", "Log", "Max", "Min", "Clip"),
        *("Range", "Resize", "Upsample", "NonMaxSuppression", "RoiAlign", "EyeLike"),
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("Multinomial", "Bernoulli"),
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
    }
)
# These stay float32 where all that they compute with is.
FOLLOWING = frozenset(
    {
        *("Add", "Sub", "Mul", "Neg", "Abs", "Identity"),
        *("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Expand"),
    }
)


def halved(model: Any, precision: str) -> Any:
    """The converted `ModelProto`; `model` itself is changed and must not be used again. Raises
    `LoadError`."""
    graph = model.graph
    if len(model.functions) or any(_has_graph(node) for node in graph.node):
        raise LoadError(
            f"a graph with branches, loops or functions cannot be converted to {precision}: leave "
            "precision at fp32, or store the graph in that type"
        )
    _Conversion(model, precision).run()
    del graph.value_info[:]
    return model


def _has_graph(node: Any) -> bool:
    return any(attribute.HasField("g") or len(attribute.graphs) for attribute in node.attribute)


class _Conversion:
    """A float32 tensor keeps its name; its half-width twin has the name with a suffix. Either is
    made, by a Cast, when an operation first asks for it."""

    def __init__(self, model: Any, precision: str) -> None:
        self._graph = model.graph
        self._type, self._dtype = FORMATS[precision]
        self._suffix = f"/{precision}"
        self._weights = {weight.name: weight for weight in self._graph.initializer}
        typed = (*self._graph.input, *self._graph.output, *onnx_model.typed(model))
        self._floats = {v.name for v in typed if v.type.tensor_type.elem_type == onnx_model.FLOAT}
        self._floats |= {n for n, w in self._weights.items() if w.data_type == onnx_model.FLOAT}
        # Tensors that there are by now, under either name.
        self._there = {value.name for value in self._graph.input} | set(self._weights)
        self._full = {value.name for value in self._graph.input}  # float32 by themselves
        self._nodes: list[Any] = []
        self._used: set[str] = set()

    def run(self) -> None:
        for node in list(self._graph.node):
            self._convert(node)
        for value in self._graph.output:
            self._take(value.name, half=False)
        halves = [self._narrow(w, n) for n, w in self._halved_weights()]
        kept = [w for n, w in self._weights.items() if n in self._used]
        del self._graph.node[:], self._graph.initializer[:]
        self._graph.node.extend(self._nodes)
        self._graph.initializer.extend([*kept, *halves])

    def _convert(self, node: Any) -> None:
        half = not (node.op_type in KEPT or self._follows(node))
        if half:
            self._retype(node)
        for at, name in enumerate(node.input):
            node.input[at] = self._take(name, half)
        self._nodes.append(node)
        for at, name in enumerate(node.output):
            if name in self._floats and half:
                node.output[at] = name + self._suffix
            elif name in self._floats:
                self._full.add(name)
            self._there.add(node.output[at])

    def _follows(self, node: Any) -> bool:
        """Whether all floats that it computes with, weights aside, are float32 by themselves."""
        given = [n for n in node.input if n in self._floats and n not in self._weights]
        return node.op_type in FOLLOWING and bool(given) and set(given) <= self._full

    def _take(self, name: str, half: bool) -> str:
        """The name under which an operation gets a tensor, made where it is not there yet."""
        wanted = name + self._suffix if half and name in self._floats else name
        if name in self._floats and wanted not in self._there and name not in self._weights:
            self._cast(name, half)
        self._used.add(wanted)
        return wanted

    def _cast(self, name: str, half: bool) -> None:
        from onnx import helper

        pair = [name, name + self._suffix]
        source, target = pair if half else reversed(pair)
        to = self._type if half else onnx_model.FLOAT
        self._nodes.append(helper.make_node("Cast", [source], [target], f"{target}/cast", to=to))
        self._there.add(target)
        self._used.add(source)

    def _halved_weights(self) -> Iterable[tuple[str, Any]]:
        for name, weight in self._weights.items():
            if name in self._floats and name + self._suffix in self._used:
                yield name + self._suffix, weight

    def _retype(self, node: Any) -> None:
        """What an operation says of types in its attributes."""
        from onnx import helper

        if node.op_type == "ConstantOfShape" and not len(node.attribute):
            zero = helper.make_tensor("value", onnx_model.FLOAT, [1], [0.0])
            node.attribute.append(helper.make_attribute("value", zero))
        for attribute in list(node.attribute):
            if attribute.HasField("t") and attribute.t.data_type == onnx_model.FLOAT:
                attribute.t.CopyFrom(self._narrow(attribute.t, attribute.t.name))
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                many = attribute.name == "value_floats"
                values = list(attribute.floats) if many else [attribute.f]
                sizes = [len(values)] if many else []
                tensor = helper.make_tensor("value", onnx_model.FLOAT, sizes, values)
                node.attribute.remove(attribute)
                node.attribute.append(helper.make_attribute("value", self._narrow(tensor, "value")))
            elif (node.op_type, attribute.name, attribute.i) == ("Cast", "to", onnx_model.FLOAT):
                attribute.i = self._type

    def _narrow(self, tensor: Any, name: str) -> Any:
        """The tensor in the format, its finite values kept finite."""
        import onnx

        most = float(ml_dtypes.finfo(self._dtype).max)
        values = onnx.numpy_helper.to_array(tensor)
        finite = np.where(np.isfinite(values), np.clip(values, -most, most), values)
        made = onnx.TensorProto(name=name, data_type=self._type, dims=tensor.dims)
        made.raw_data = finite.astype(self._dtype).tobytes()
        return made
