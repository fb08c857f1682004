"""Turns a source of any kind into an OpenVINO model with the outputs of its task.

A Hugging Face folder is first converted into the ONNX graph that ONNX Runtime runs too; ONNX and
OpenVINO IR are read as they are. For the task `embed`, only the embedding stays an output; pooling
is added to a model whose output is one vector a token, so that hidden states are not copied out.
The model is stored with float32 weights. Compiles nothing.

`import openvino` sends an event through the package `openvino_telemetry`, with no switch in code:
so `library` hides that package from Python's import system before OpenVINO's first import.
Source: `openvino/tools/ovc/telemetry_utils.py` of OpenVINO 2026.4.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from runtimes import errors
from runtimes.errors import LoadError
from runtimes.folder import Pooling
from runtimes.graph import pooling
from runtimes.graph.dense import GraphFacts
from runtimes.graph.options import GraphOptions
from runtimes.onnx import model as onnx_model
from runtimes.source import Source, SourceKind
from runtimes.types import RuntimeSettings, TensorSpec


def library() -> Any:
    """The `openvino` module. Raises `MissingBackend` if it is not installed."""
    if "openvino" not in sys.modules:
        # None makes the import system raise ImportError for that name.
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    needed = "the openvino runtime needs its package"
    return errors.library("openvino", needed, "headrace[openvino]")


Node = Any  # openvino.Output or openvino.Node: the library is imported on use only
DATATYPES: Mapping[str, str] = {
    "boolean": "BOOL",
    **{f"u{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"i{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{"f16": "FP16", "bf16": "BF16", "f32": "FP32", "f64": "FP64"},
}


def read(source: Source, settings: RuntimeSettings, options: GraphOptions) -> Any:
    """The `openvino.Model` for the settings' task. Raises `LoadError`."""
    if source.kind is SourceKind.TORCH_EXPORT:
        raise LoadError(f"{source.path}: only the torch runtime runs torch.export archives")
    if source.kind is SourceKind.HUGGING_FACE:
        graph = onnx_model.read(source, settings, options)
        with tempfile.TemporaryDirectory(dir=settings.cache_dir) as scratch:
            file = Path(scratch) / "model.onnx"
            onnx_model.save(graph, file)
            # OpenVINO keeps the weights' file mapped: removing the folder does not remove them.
            return _of_file(file)
    model = _of_file(source.path)
    for port in (port for port in model.inputs if not port.names):  # as in old IR
        port.tensor.set_names({port.node.friendly_name})
    for port in (port for port in model.outputs if not port.names):
        port.tensor.set_names({port.node.input_value(0).node.friendly_name})
    return _embedding(model, settings, options) if settings.task == "embed" else model


def _of_file(file: Path) -> Any:
    try:
        return library().Core().read_model(str(file))
    except RuntimeError as error:
        raise LoadError(f"OpenVINO cannot read {file}: {error}") from error


def save(model: Any, file: Path, keep_fp32: Sequence[str] = ()) -> None:
    """Writes the IR and its weights, as float32: compressed weights would cost accuracy that nobody
    asked to trade.

    `keep_fp32`: names of operations that compute in float32 at any precision. Raises `LoadError` if
    there is no such operation.
    """
    _number(model)
    library().save_model(model, str(file), compress_to_fp16=False)
    if not keep_fp32:
        return
    # Operations are marked as `precise` in the stored IR; OpenVINO's Python API has no way to.
    tree = ElementTree.parse(file)
    layers = {layer.get("name", ""): layer for layer in tree.iter("layer")}
    onnx_model.check_kept(keep_fp32, [name for name in layers if name])
    for name in keep_fp32:
        info = layers[name].find("rt_info")
        if info is None:
            info = ElementTree.Element("rt_info")
            layers[name].insert(0, info)
        ElementTree.SubElement(info, "attribute", {"name": "precise", "version": "0"})
    tree.write(file)


def facts(model: Any, max_length: int | None) -> GraphFacts:
    return GraphFacts(
        inputs=tuple(map(_spec, model.inputs)),
        outputs=tuple(map(_spec, model.outputs)),
        id_bounds=_id_bounds(model),
        max_length=max_length,
    )


def _spec(port: Any) -> TensorSpec:
    name, kind, shape = port.get_any_name(), port.element_type.get_type_name(), port.partial_shape
    if kind not in DATATYPES:
        raise LoadError(f"'{name}' has the type {kind}; supported are {', '.join(DATATYPES)}")
    if shape.rank.is_dynamic:
        raise LoadError(f"'{name}' has no fixed number of axes")
    sizes = tuple(-1 if size.is_dynamic else size.get_length() for size in shape)
    return TensorSpec(name, DATATYPES[kind], sizes)


def _number(model: Any) -> None:
    """Renames operations without a name of their own by their type and position.

    OpenVINO gives them numbers that differ from run to run.
    """
    for place, node in enumerate(model.get_ordered_ops()):
        kind = node.get_type_name()
        unnamed = re.fullmatch(rf"{kind}_\d+", node.get_friendly_name())
        if unnamed and kind not in ("Parameter", "Constant", "Result"):
            node.set_friendly_name(f"{kind}_{place}")


def _embedding(model: Any, settings: RuntimeSettings, options: GraphOptions) -> Any:
    name, todo = pooling.of_graph([_spec(port) for port in model.outputs], options)
    node = model.output(name).node.input_value(0)
    if todo == Pooling(()):
        return library().Model([node], model.get_parameters(), model.friendly_name)
    ports = {name: port for port in model.inputs for name in port.names}
    mask = ports.get(pooling.mask_of(ports, todo, settings.mask_input))
    pooled = pooling.pool(OpenVINOPooling(), node, mask, todo)
    pooled.output(0).get_tensor().set_names({pooling.EMBEDDING_OUTPUT})
    return library().Model([pooled], model.get_parameters(), model.friendly_name)


def _id_bounds(model: Any) -> dict[str, int]:
    """Inputs that are indices of a stored table, with the size of the smallest table.

    An input counts if a Gather reads it, directly or behind conversions.
    """
    bounds: dict[str, int] = {}
    for port in model.inputs:
        sizes = [size for target in port.get_target_inputs() for size in _table_sizes(target)]
        if sizes:
            bounds[port.get_any_name()] = min(sizes)
    return bounds


def _table_sizes(target: Any) -> list[int]:
    node = target.get_node()
    if node.get_type_name() == "Convert":
        after = node.output(0).get_target_inputs()
        return [size for further in after for size in _table_sizes(further)]
    if node.get_type_name() != "Gather" or target.get_index() != 1:
        return []
    axis, table = node.input_value(2).get_node(), node.input_value(0).get_node()
    while table.get_type_name() == "Convert":  # of compressed weights
        table = table.input_value(0).get_node()
    if table.get_type_name() != "Constant" or axis.get_type_name() != "Constant":
        return []
    return [table.output(0).shape[int(axis.data.item())]]


class OpenVINOPooling:
    """`PoolingOps` over OpenVINO's nodes."""

    def __init__(self) -> None:
        self._ops = library().opset13

    def multiply(self, left: Node, right: Node) -> Node:
        return self._ops.multiply(left, right)

    def divide(self, left: Node, right: Node) -> Node:
        return self._ops.divide(left, right)

    def first_token(self, x: Node) -> Node:
        return self._ops.gather(x, self._ints(0), self._ints(1))

    def float_mask(self, mask: Node) -> Node:
        return self._ops.unsqueeze(self._ops.convert(mask, "f32"), self._ints([2]))

    def sum_over(self, x: Node, axis: int) -> Node:
        return self._ops.reduce_sum(x, self._ints([axis]), axis == -1)

    def at_least(self, x: Node, floor: float) -> Node:
        return self._ops.maximum(x, self._ops.constant(np.float32(floor)))

    def square_root(self, x: Node) -> Node:
        return self._ops.sqrt(x)

    def _ints(self, values: int | list[int]) -> Node:
        return self._ops.constant(np.asarray(values, np.int64))
