"""Converts an ONNX graph to float16 or bfloat16, or quantises it to int8.

Half: every float32 tensor between two operations becomes half as wide, and so do the weights.
Inputs and outputs of the model stay float32, and so do operations that need more range or precision
(sums, roots, quotients). A graph with branches, loops or functions is refused. For TensorRT, which
takes types from the graph; ONNX Runtime's own converter serves that backend.

int8: ONNX Runtime's tool quantises matrix products and convolutions with ranges calibrated on real
rows: activations with one range a tensor, weights with one a channel (QDQ), which ONNX Runtime and
OpenVINO both compile to integer kernels. `headrace verify` measures its accuracy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from runtimes import calibration, errors
from runtimes.calibration import GraphInput
from runtimes.errors import LoadError
from runtimes.graph.options import GraphOptions
from runtimes.onnx import model as onnx_model
from runtimes.onnx import session as onnxruntime_session
from runtimes.types import RuntimeSettings

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
# These stay float32 where all floats that they compute with, weights aside, are so by themselves.
FOLLOWING = frozenset(
    {
        *("Add", "Sub", "Mul", "Neg", "Abs", "Identity"),
        *("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Expand"),
    }
)


def halved(model: Any, precision: str, kept: Sequence[str] = ()) -> Any:
    """The converted `ModelProto`; `model` itself is changed and must not be used again. `kept`:
    names of operations that compute in float32. Raises `LoadError`."""
    graph = model.graph
    attributes = (attribute for node in graph.node for attribute in node.attribute)
    if len(model.functions) or any(a.HasField("g") or len(a.graphs) for a in attributes):
        raise LoadError(
            f"a graph with branches, loops or functions cannot be converted to {precision}: leave "
            "precision at fp32, or store the graph in that type"
        )
    _Conversion(model, precision, kept).run()
    del graph.value_info[:]
    return model


class _Conversion:
    """A float32 tensor keeps its name; its half-width twin has the name with a suffix. Either is
    made, by a Cast, when an operation first asks for it."""

    def __init__(self, model: Any, precision: str, kept: Sequence[str]) -> None:
        self._graph, self._kept = model.graph, frozenset(kept)
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
        halves = [
            self._narrow(weight, name + self._suffix)
            for name, weight in self._weights.items()
            if name in self._floats and name + self._suffix in self._used
        ]
        kept = [w for n, w in self._weights.items() if n in self._used]
        del self._graph.node[:], self._graph.initializer[:]
        self._graph.node.extend(self._nodes)
        self._graph.initializer.extend([*kept, *halves])

    def _convert(self, node: Any) -> None:
        given = {n for n in node.input if n in self._floats and n not in self._weights}
        follows = node.op_type in FOLLOWING and bool(given) and given <= self._full
        half = not (node.op_type in KEPT or node.name in self._kept or follows)
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


KINDS = ("MatMul", "Gemm", "Conv")
FILE = "quantised.onnx"
REAL = ("tensor(float)", "tensor(float16)")

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]


def build(model: Any, folder: Path, settings: RuntimeSettings, options: GraphOptions) -> Path:
    """Writes `quantised.onnx` and its weights into `folder`; returns the file.

    Raises `LoadError`.
    """
    onnx_model.check_kept(options.keep_fp32, [node.name for node in model.graph.node])
    feeds = calibration.rows(settings, options, graph_inputs(model))
    typed = folder / "typed.onnx"
    _type_all(model, folder)
    onnx_model.save(model, typed)
    _quantise(typed, folder / FILE, feeds, options.keep_fp32)
    for file in folder.glob("typed.*"):
        file.unlink()
    return folder / FILE


def library() -> Any:
    """The module `onnxruntime.quantization`. Raises `MissingBackend`."""
    needed = "precision int8 needs onnxruntime and onnx"
    return errors.library("onnxruntime.quantization", needed, "headrace[onnxruntime]")


def _quantise(plain: Path, made: Path, feeds: Sequence[Feed], keep: Sequence[str]) -> None:
    tool = library()
    logger = logging.getLogger()
    before = logger.level
    logger.setLevel(logging.ERROR)  # the tool warns, by the root logger, of what it does not change
    try:
        tool.quantize_static(
            str(plain),
            str(made),
            _reader(tool, feeds),
            quant_format=tool.QuantFormat.QDQ,
            op_types_to_quantize=list(KINDS),
            per_channel=True,
            activation_type=tool.QuantType.QUInt8,
            weight_type=tool.QuantType.QInt8,
            nodes_to_exclude=list(keep),
            calibrate_method=tool.CalibrationMethod.MinMax,
            use_external_data_format=True,
            extra_options={"ActivationSymmetric": False, "WeightSymmetric": True},
        )
    except Exception as error:  # the tool's errors share no base class
        raise LoadError(f"the model cannot be quantised: {error}") from error
    finally:
        logger.setLevel(before)


def _reader(tool: Any, feeds: Sequence[Feed]) -> Any:
    class FeedReader(tool.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left: Iterator[Feed] = iter(feeds)

        def get_next(self) -> Feed | None:
            return next(self._left, None)

    return FeedReader()


def graph_inputs(model: Any) -> list[GraphInput]:
    """The inputs that a calibration feeds."""
    import onnx

    stored = {weight.name for weight in model.graph.initializer}
    return [
        GraphInput(
            value.name,
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
            len(value.type.tensor_type.shape.dim),
        )
        for value in model.graph.input
        if value.name not in stored
    ]


def _type_all(model: Any, folder: Path) -> None:
    """Adds the type of every floating-point tensor to the graph.

    The quantisation tool leaves tensors of unknown type in fp32, and onnx cannot infer types behind
    ONNX Runtime's own (contributed) operations. So a session of ONNX Runtime infers them.
    """
    import onnx

    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    onnx_model.expose(exposed)
    file = folder / "typed.exposed.onnx"
    onnx_model.save(exposed, file)
    real = [
        value.name for value in onnxruntime_session.plain(file).get_outputs() if value.type in REAL
    ]
    described = {value.name for value in (*model.graph.output, *model.graph.value_info)}
    for name in real:
        if name not in described:
            info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            model.graph.value_info.append(info)
