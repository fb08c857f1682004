"""Turns a source into an ONNX model with the outputs of its task.

The model of a BERT folder is built from ONNX nodes, that of any other folder exported from
transformers (`runtimes.exporting`); an ONNX file is read as it is. For the
task `embed`, only the embedding stays an output; pooling is added to a model whose output is one
vector a token, so that hidden states are not copied out. The module also says which inputs are
indices of a table, and how large the table is.

Optimises nothing and opens no session. The `onnx` package is imported on use.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runtimes import errors, exporting
from runtimes.errors import LoadError
from runtimes.folder import Pooling, pooling_of
from runtimes.graph import bert as bert_graph
from runtimes.graph import pooling
from runtimes.graph.options import GraphOptions
from runtimes.source import Source, SourceKind
from runtimes.types import RuntimeSettings, TensorSpec

MIN_OPSET = 13  # from this one on ReduceSum and Unsqueeze take their axes as an input
FLOAT = 1  # TensorProto.FLOAT
SHAPE_VALUES = 64  # a weight of at most so many values may be a shape, which type inference reads
_NUMBERED = (
    *("FP32", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64"),
    *("BYTES", "BOOL", "FP16", "FP64", "UINT32", "UINT64"),
)
DATATYPES = {**dict(enumerate(_NUMBERED, 1)), 16: "BF16"}  # by TensorProto's numbers
THROUGH = frozenset({"Cast", "Identity"})


def read(
    source: Source, settings: RuntimeSettings, options: GraphOptions, *, standard: bool = False
) -> Any:
    """The `ModelProto` for the settings' task, weights in memory. `standard`: what is built or
    exported has no operators of ONNX Runtime's own. Raises `LoadError`."""
    _require_onnx()
    if source.kind is SourceKind.HUGGING_FACE:
        declared = pooling_of(source.path, options.pooling, options.normalize)
        if bert_graph.is_built(source.path, settings.task, declared):
            return _built(source, settings.task, declared, standard)
        return _loaded(exporting.exported(source, settings, options, standard=standard))
    if source.kind is SourceKind.TORCH_EXPORT:
        raise LoadError(f"{source.path}: only the torch runtime runs torch.export archives")
    if source.kind is not SourceKind.ONNX:
        raise LoadError(f"{source.path}: only the openvino runtime runs OpenVINO IR")
    model = _loaded(source.path)
    if settings.task == "embed":
        name, todo = pooling.of_graph([_spec(value) for value in model.graph.output], options)
        kept = next(value for value in model.graph.output if value.name == name)
        if todo != Pooling(()):
            kept = _pooled(model, kept, todo, settings)
        del model.graph.output[:]
        model.graph.output.append(kept)
    return model


def save(model: Any, file: Path) -> None:
    """Writes the model, and its weights to a file beside it: a protobuf message ends at 2 GB."""
    import onnx

    onnx.save(model, str(file), save_as_external_data=True, location=f"{file.stem}.weights")


def specs(values: Any, model: Any) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, Open Inference datatype and shape of inputs or outputs. Raises `LoadError`.

    Old graphs list stored weights among their inputs; these are left out.
    """
    stored = {weight.name for weight in model.graph.initializer}
    found = []
    for value in values:
        kind = value.type.tensor_type.elem_type
        if value.name in stored:
            continue
        if kind not in DATATYPES:
            raise LoadError(
                f"'{value.name}' has ONNX's element type {kind}, which is not supported"
            )
        found.append((value.name, DATATYPES[kind], _spec(value).shape))
    return found


def expose(model: Any) -> None:
    """Makes every tensor of the graph an output.

    The outputs get no types. A session of ONNX Runtime infers them, also for its own operations,
    which onnx does not know.
    """
    import onnx

    known = {value.name for value in model.graph.output}
    names = (name for node in model.graph.node for name in node.output if name)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)


def halved(model: Any, kept: Sequence[str] = ()) -> Any:
    """The model converted to float16. Its inputs and outputs and the operations `kept` stay as they
    are."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    # The converter casts a kept operation's inputs and outputs only if the graph says their types.
    model.graph.value_info.extend(typed(model))
    return convert_float_to_float16(
        model, keep_io_types=True, disable_shape_infer=True, node_block_list=list(kept)
    )


def typed(model: Any) -> list[Any]:
    """The types of inner tensors, without shapes, by onnx's inference.

    Large weights become inputs: inference does not need their values, which may be more than it can
    take. An operation that onnx does not know (ONNX Runtime's own, such as Gelu) becomes an
    Identity, so that its output has the type of its first input.
    """
    import onnx

    bare = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    bare.graph.name = model.graph.name
    bare.graph.input.extend(model.graph.input)
    bare.graph.output.extend(model.graph.output)
    for node in model.graph.node:
        known = node.domain in ("", "ai.onnx")
        alike = onnx.helper.make_node("Identity", node.input[:1], node.output[:1])
        bare.graph.node.append(node if known else alike)
    for weight in model.graph.initializer:
        if math.prod(weight.dims) <= SHAPE_VALUES:
            bare.graph.initializer.append(weight)
        else:
            sizes = list(weight.dims)
            value = onnx.helper.make_tensor_value_info(weight.name, weight.data_type, sizes)
            bare.graph.input.append(value)
    stored = {value.name for value in model.graph.value_info}
    return [
        onnx.helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, None)
        for value in onnx.shape_inference.infer_shapes(bare).graph.value_info
        if value.name not in stored
    ]


def id_bounds(model: Any) -> dict[str, int]:
    """Inputs that are indices of a stored table, with the size of the smallest table.

    An input counts if a Gather reads it, directly or behind conversions.
    """
    sizes = {weight.name: list(weight.dims) for weight in model.graph.initializer}
    readers: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found = {value.name: list(_tables(value.name, readers, sizes)) for value in model.graph.input}
    return {name: min(bounds) for name, bounds in found.items() if bounds}


def _tables(
    name: str, readers: Mapping[str, list[Any]], sizes: Mapping[str, list[int]]
) -> Iterator[int]:
    for node in readers.get(name, []):
        if node.op_type in THROUGH:
            yield from _tables(node.output[0], readers, sizes)
        elif node.op_type == "Gather" and node.input[1] == name and node.input[0] in sizes:
            axis = next((field.i for field in node.attribute if field.name == "axis"), 0)
            yield sizes[node.input[0]][axis]


def _built(source: Source, task: str, declared: Pooling | None, standard: bool) -> Any:
    from runtimes.onnx.ops import ONNXOps, StandardOps, model

    ops = StandardOps() if standard else ONNXOps()
    config, weights, head = bert_graph.open_bert(source, task, declared)
    outputs = bert_graph.build(ops, config, weights, head)
    shapes: dict[str, list[int | str]] = {
        bert_graph.HIDDEN: ["rows", "length", config.hidden_size],
        bert_graph.EMBEDDING: ["rows", config.hidden_size],
    }
    if task == "classify":
        labels = weights.top("classifier").read("bias", (-1,)).shape[0]
        shapes[bert_graph.LOGITS] = ["rows", labels]
    named = {name: (value, shapes[name]) for name, value in outputs.items()}
    return model(ops, named, source.path.name)


def load(path: Path) -> Any:
    """The stored `ModelProto`, weights in memory. Raises `LoadError`."""
    _require_onnx()
    return _loaded(path)


def _loaded(path: Path) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return _with_external_data(path)
    except (DecodeError, OSError, onnx.checker.ValidationError) as error:
        raise LoadError(f"{path} cannot be read as an ONNX model: {error}") from error


def _with_external_data(path: Path) -> Any:
    """As `onnx.load`, which takes no links: those that `runtimes.source` let pass are followed."""
    import onnx
    from onnx.external_data_helper import load_external_data_for_model

    model = onnx.load(str(path), load_external_data=False)
    entries = [
        entry for tensor in _tensors(model) for entry in tensor.external_data
        if entry.key == "location"
    ]  # fmt: skip
    real = {entry.value: (path.parent / entry.value).resolve() for entry in entries}
    if not real:
        return model
    base = Path(os.path.commonpath([file.parent for file in real.values()]))
    for entry in entries:
        entry.value = real[entry.value].relative_to(base).as_posix()
    load_external_data_for_model(model, str(base))
    return model


def _tensors(message: Any) -> Iterator[Any]:
    """All tensors of a model, wherever they stand."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for part in (value,) if hasattr(value, "ListFields") else value:
            if field.message_type.name == "TensorProto":
                yield part
            else:
                yield from _tensors(part)


def _pooled(model: Any, hidden: Any, todo: Pooling, settings: RuntimeSettings) -> Any:
    """Appends the nodes of the pooling to the graph; returns the new output's description."""
    from onnx import helper

    from runtimes.onnx.ops import ONNXOps

    opset = next((entry.version for entry in model.opset_import if not entry.domain), 0)
    if opset < MIN_OPSET:
        raise LoadError(
            f"pooling can be added to models of opset {MIN_OPSET} or newer; this one has {opset}"
        )
    if hidden.type.tensor_type.elem_type != FLOAT:
        raise LoadError(f"pooling can be added to FP32 outputs; '{hidden.name}' is another type")
    ops = ONNXOps(prefix="headrace_")
    inputs = {value.name for value in model.graph.input}
    mask = pooling.mask_of(inputs, todo, settings.mask_input)
    value = pooling.pool(ops, hidden.name, mask, todo)
    ops.nodes.append(helper.make_node("Identity", [value], [pooling.EMBEDDING_OUTPUT]))
    model.graph.node.extend(ops.nodes)
    model.graph.initializer.extend(ops.initializers)
    width = _spec(hidden).shape[-1]
    shape = ["rows", width if width > 0 else "width"]
    return helper.make_tensor_value_info(pooling.EMBEDDING_OUTPUT, FLOAT, shape)


def _spec(value: Any) -> TensorSpec:
    sizes = value.type.tensor_type.shape.dim
    shape = tuple(size.dim_value if size.HasField("dim_value") else -1 for size in sizes)
    return TensorSpec(value.name, "", shape)


def _require_onnx() -> None:
    errors.library("onnx", "converting a model needs onnx", "onnx>=1.18")


def check_kept(names: Sequence[str], known: Sequence[str]) -> None:
    """Raises `LoadError` for a name of `keep_fp32` that is no operation of the model."""
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3)
            hint = f", did you mean {' or '.join(close)}?" if close else ""
            raise LoadError(f"option 'keep_fp32': the model has no operation '{name}'{hint}")
