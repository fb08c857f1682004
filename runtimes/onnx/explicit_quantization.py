"""Quantises an ONNX graph to int8 or fp8 as TensorRT takes it: by QuantizeLinear/DequantizeLinear.

Every product (MatMul, Gemm, Conv) with a stored weight gets both factors through such a pair, all
symmetric, so that zero points are zero: the activation with one scale a tensor, an int8 weight with
one a channel, an fp8 (E4M3) weight with one a tensor, as fp8's steps follow the values. Products of
two activations (attention), sums, norms, softmax, biases and outputs compute in float16 or more:
the graph is converted to float16 first, and the scales with it, since a scale has its tensor's
type. Convolutions stay float16 in fp8.

An activation's scale is the largest magnitude that recorded rows reach (`runtimes.calibration`), as
ONNX Runtime computes them in fp32 on processors. Sources: TensorRT's guide, "Explicit
Quantization" and its operators Quantize and Dequantize; Micikevicius et al. 2022, FP8 Formats.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from runtimes import calibration, errors
from runtimes.errors import LoadError
from runtimes.graph.options import GraphOptions
from runtimes.onnx import model as onnx_model
from runtimes.onnx import session as onnxruntime_session
from runtimes.onnx.precision import graph_inputs, halved
from runtimes.types import RuntimeSettings

MIN_OPSET = 19  # from this one on float16 is quantised, and to E4M3
OPSET = 20
MIN_IR_VERSION = 9  # that knows E4M3
BASE = "fp16"  # what is not quantised
LEAST_SCALE = 2.0**-14  # of an activation, whose inverse may be taken in float16
KINDS = {"int8": ("MatMul", "Gemm", "Conv"), "fp8": ("MatMul", "Gemm")}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class _Format:
    """`element`: TensorProto's number; `largest`: what the largest magnitude becomes."""

    element: int
    dtype: np.dtype[Any]
    largest: float


_FORMATS = {
    "int8": _Format(3, np.dtype(np.int8), 127.0),
    "fp8": _Format(17, np.dtype(ml_dtypes.float8_e4m3fn), 448.0),
}


@dataclass(frozen=True, slots=True)
class _Product:
    """A node by its name, and its weight's axis of output channels, None where it has no one."""

    node: str
    channels: int | None


def require() -> None:
    """Raises `MissingBackend` where the rows could not be computed."""
    needed = "the ranges of int8 and fp8 are measured with ONNX Runtime, on processors"
    errors.library("onnxruntime", needed, "headrace[onnxruntime]")


def quantised(model: Any, folder: Path, settings: RuntimeSettings, options: GraphOptions) -> Any:
    """The converted `ModelProto`; `model` itself is changed and must not be used again. `folder`
    holds files meanwhile. Raises `LoadError`."""
    precision, kept = settings.precision, options.keep_fp32
    onnx_model.check_kept(kept, [node.name for node in model.graph.node])
    model = _modern(model, precision)
    products = _products(model, KINDS[precision], kept)
    if not products:
        raise LoadError(
            f"the graph has no {', '.join(KINDS[precision])} with a stored fp32 weight to compute "
            f"in {precision}: leave precision at fp32 or fp16; a graph that is stored quantised "
            "runs as it is stored"
        )
    feeds = calibration.rows(settings, options, graph_inputs(model))
    ranges = _ranges(model, products, folder, feeds)
    made = halved(model, BASE, kept)
    _Insertion(made, _FORMATS[precision], precision == "int8").run(products, ranges)
    return made


def _modern(model: Any, precision: str) -> Any:
    """The model at an opset that has the pairs."""
    from onnx import version_converter

    opset = next((entry.version for entry in model.opset_import if not entry.domain), 0)
    if opset < MIN_OPSET:
        try:
            model = version_converter.convert_version(model, OPSET)
        except Exception as error:  # the converter's errors share no base class
            raise LoadError(
                f"precision {precision} needs a graph of opset {MIN_OPSET} or newer; this one has "
                f"{opset}, and onnx cannot convert it ({error}): export it with opset {OPSET}"
            ) from error
    model.ir_version = max(model.ir_version, MIN_IR_VERSION)
    return model


def _products(model: Any, kinds: Sequence[str], kept: Sequence[str]) -> list[_Product]:
    """Those to quantise; gives names to nodes that lack one of their own."""
    weights = {w.name: w for w in model.graph.initializer if w.data_type == onnx_model.FLOAT}
    names, found = set[str](), list[_Product]()
    numbers = itertools.count()
    for node in model.graph.node:
        while not node.name or node.name in names:
            node.name = f"{node.op_type}_unnamed_{next(numbers)}"
        names.add(node.name)
        stored = node.op_type in kinds and node.input[1] in weights
        if not stored or node.input[0] in weights or node.name in kept:
            continue
        flags = {each.name: each.i for each in node.attribute}
        if flags.get("transA"):
            continue
        axes = len(weights[node.input[1]].dims)
        channels = {"Conv": 0, "Gemm": 0 if flags.get("transB") else 1, "MatMul": 1}[node.op_type]
        found.append(_Product(node.name, channels if axes == 2 or node.op_type == "Conv" else None))
    return found


def _ranges(
    model: Any, products: Sequence[_Product], folder: Path, feeds: Sequence[Mapping[str, Array]]
) -> dict[str, float]:
    """The largest magnitude of each product's activation over the rows, by the product's name."""
    import onnx
    from onnx import helper

    wanted = {product.node for product in products}
    inputs = {node.name: node.input[0] for node in model.graph.node if node.name in wanted}
    tensors = list(dict.fromkeys(inputs.values()))
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    for at, tensor in enumerate(tensors):
        size, largest = f"headrace_size_{at}", f"headrace_largest_{at}"
        watched.graph.node.append(helper.make_node("Abs", [tensor], [size]))
        watched.graph.node.append(helper.make_node("ReduceMax", [size], [largest], keepdims=0))
        info = helper.make_tensor_value_info(largest, onnx_model.FLOAT, [])
        watched.graph.output.append(info)
    file = folder / "watched.onnx"
    onnx_model.save(watched, file)
    session = onnxruntime_session.plain(file)
    reached = np.zeros(len(tensors))
    for feed in feeds:
        reached = np.maximum(reached, session.run(None, dict(feed)))  # NaN stays
    del session
    for stored in folder.glob("watched.*"):
        stored.unlink()
    for tensor, most in zip(tensors, reached, strict=True):
        if not math.isfinite(most):
            raise LoadError(f"the calibration's rows make '{tensor}' infinite or NaN in fp32")
    by_tensor = dict(zip(tensors, reached.tolist(), strict=True))
    return {node: by_tensor[tensor] for node, tensor in inputs.items()}


class _Insertion:
    """Puts the pairs into a float16 graph; a tensor that several products read has one pair."""

    def __init__(self, model: Any, form: _Format, by_channel: bool) -> None:
        self._graph, self._form, self._by_channel = model.graph, form, by_channel
        self._weights = {weight.name: weight for weight in model.graph.initializer}
        self._initializers: list[Any] = []
        self._there: set[str] = set()

    def run(self, products: Sequence[_Product], ranges: Mapping[str, float]) -> None:
        by_name = {product.node: product for product in products}
        nodes: list[Any] = []
        for node in list(self._graph.node):
            product = by_name.get(node.name)
            if product is not None:
                data, weight = node.input[0], node.input[1]
                nodes += self._activation(data, ranges[node.name])
                nodes += self._weight(weight, product.channels)
                node.input[0] = f"{data}/dequantized"
                node.input[1] = _named(weight, product.channels, "dequantized")
            nodes.append(node)
        used = {name for node in nodes for name in node.input}
        kept = [weight for name, weight in self._weights.items() if name in used]
        del self._graph.node[:], self._graph.initializer[:]
        self._graph.node.extend(nodes)
        self._graph.initializer.extend([*kept, *self._initializers])

    def _activation(self, name: str, largest: float) -> Iterator[Any]:
        from onnx import helper

        if name in self._there:
            return
        self._there.add(name)
        scale = self._scale(np.maximum(largest, LEAST_SCALE * self._form.largest))
        parts = [f"{name}/scale", f"{name}/zero"]
        self._store(parts[0], scale, 10)
        self._store(parts[1], np.zeros((), self._form.dtype), self._form.element)
        whole, back = f"{name}/quantized", f"{name}/dequantized"
        yield helper.make_node("QuantizeLinear", [name, *parts], [whole], whole)
        yield helper.make_node("DequantizeLinear", [whole, *parts], [back], back)

    def _weight(self, name: str, channels: int | None) -> Iterator[Any]:
        import onnx

        axis = channels if self._by_channel else None
        back = _named(name, channels, "dequantized")
        if back in self._there:
            return
        self._there.add(back)
        values = onnx.numpy_helper.to_array(self._weights[name]).astype(np.float32)
        others = tuple(at for at in range(values.ndim) if at != axis)
        scale = self._scale(np.abs(values).max(axis=others))
        wide = scale.astype(np.float32)
        if axis is not None:
            wide = wide.reshape([-1 if at == axis else 1 for at in range(values.ndim)])
        whole = np.clip(values / wide, -self._form.largest, self._form.largest)
        if self._form.dtype == np.int8:
            whole = np.rint(whole)
        parts = [_named(name, channels, part) for part in ("quantized", "scale", "zero")]
        self._store(parts[0], whole.astype(self._form.dtype), self._form.element)
        self._store(parts[1], scale, 10)
        self._store(parts[2], np.zeros(scale.shape, self._form.dtype), self._form.element)
        of_axis: dict[str, Any] = {} if axis is None else {"axis": axis}
        yield onnx.helper.make_node("DequantizeLinear", parts, [back], back, **of_axis)

    def _scale(self, largest: Array) -> Array:
        """In float16, rounded up, so that nothing is cut off, and never zero."""
        exact = largest / self._form.largest
        near = exact.astype(np.float16)
        return np.where((near < exact) | (near == 0), np.nextafter(near, np.float16(np.inf)), near)

    def _store(self, name: str, array: Array, element: int) -> None:
        import onnx

        made = onnx.TensorProto(name=name, data_type=element, dims=array.shape)
        made.raw_data = np.ascontiguousarray(array).tobytes()
        self._initializers.append(made)


def _named(weight: str, channels: int | None, part: str) -> str:
    """Two products may read one weight along different axes."""
    return f"{weight}/{part}" if channels is None else f"{weight}/{part}_{channels}"
