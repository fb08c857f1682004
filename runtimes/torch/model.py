"""Turns a source into a `TorchModel`: a callable network with its inputs, outputs and bounds.

A Hugging Face folder has transformers' own module (`encoder`). A `torch.export` archive has a graph
of its own; its symbolic sizes say which axes are dynamic, which bounds they have, and which outputs
follow the length.

`prepared` moves a model to its device and memory format. `modes` decides how the model runs (eager,
compiled, captured). `trace` runs its graph node by node, on the CPU; no operation can be kept in
fp32, because torch computes the whole model in one type. This module imports torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from runtimes import options as option_parser
from runtimes import rows
from runtimes.errors import LoadError
from runtimes.folder import pooling_of
from runtimes.graph import bert as bert_graph
from runtimes.layers import TracedTensor
from runtimes.source import Source, inspect
from runtimes.torch import archive as torch_archive
from runtimes.torch import int8
from runtimes.torch.options import TorchOptions
from runtimes.types import TOKEN_VECTORS, Limits, RuntimeSettings, TensorSpec

DATATYPES: Mapping[torch.dtype, str] = {
    **{torch.bool: "BOOL", torch.uint8: "UINT8", torch.int8: "INT8", torch.int16: "INT16"},
    **{torch.int32: "INT32", torch.int64: "INT64", torch.float16: "FP16"},
    **{torch.bfloat16: "BF16", torch.float32: "FP32", torch.float64: "FP64"},
}
FLOATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_BY_TOKEN = (bert_graph.HIDDEN, TOKEN_VECTORS)  # outputs that are as long as their rows
UNBOUNDED = 1 << 40  # torch's upper bound of an unbounded size is near 2^63


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A network, and what is needed to run batches on it."""

    module: Any  # the network
    # Makes a callable of the network, or of its compiled wrapper. The callable takes tensors in the
    # order of `limits.inputs` and returns outputs by name.
    bind: Callable[[Any], Callable[..., Mapping[str, torch.Tensor]]]
    limits: Limits
    cut_axes: Mapping[str, int]  # outputs that follow the length: on which axis
    lengthwise: Mapping[str, int]  # inputs that are padded to the common length: on which axis
    floats: frozenset[str] = frozenset()  # outputs that are float32 at any precision


def prepared(model: TorchModel, device: torch.device, channels_last: bool) -> TorchModel:
    """The model on `device`, with limits that say so."""
    module = model.module
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
    if device.type != "cpu":
        module = _moved(module, device)
    return replace(model, module=module, limits=replace(model.limits, device=str(device)))


def _moved(module: torch.fx.GraphModule, device: torch.device) -> torch.fx.GraphModule:
    """Moves a graph and those below it to a device, also where an exported graph names a device:
    for the tensors that it creates, and for those that it casts."""

    def move(argument: Any) -> Any:
        return device if isinstance(argument, torch.device) else argument

    for graph in (each for each in module.modules() if isinstance(each, torch.fx.GraphModule)):
        for node in graph.graph.nodes:
            node.args = map_aggregate(node.args, move)
            node.kwargs = map_aggregate(node.kwargs, move)
        graph.recompile()
    return module.to(device)


def from_folder(source: Source, settings: RuntimeSettings, options: TorchOptions) -> TorchModel:
    """The model of a Hugging Face folder: transformers' own module.

    Raises `LoadError` if the folder lacks a part, or declares one that is not supported.
    """
    declared = pooling_of(source.path, options.pooling, options.normalize)
    # It imports transformers, which takes seconds and which archives do not need.
    towers = importlib.import_module("runtimes.torch.towers")
    images = settings.row_shapes is not None
    encoder = towers.opened(source.path, settings.task, declared, images=images)
    by_token = _BY_TOKEN if encoder.inputs[0] == bert_graph.INPUT_IDS else ()
    with torch.inference_mode():
        found = encoder(*towers.examples(encoder, 1, 2))
    outputs = tuple(
        TensorSpec(
            name,
            "FP32" if value.is_floating_point() else "INT64",
            (-1, -1, value.shape[-1]) if name in by_token else (-1, *value.shape[1:]),
        )
        for name, value in found.items()
    )
    if settings.precision == "int8":
        int8.quantise(encoder.network)
    elif settings.precision != "fp32":
        encoder.to_precision(FLOATS[settings.precision])
    limits = rows.settled(_limits(encoder.specs, source, settings), settings)
    if not by_token:
        limits = replace(limits, max_length=None)
    return TorchModel(
        module=encoder,
        bind=lambda module: module,
        limits=replace(limits, outputs=outputs, id_bounds=encoder.id_bounds),
        floats=frozenset(name for name, value in found.items() if value.is_floating_point()),
        cut_axes=dict.fromkeys(by_token, 1),
        lengthwise=dict.fromkeys(encoder.inputs if by_token else (), 1),
    )


def _limits(inputs: tuple[TensorSpec, ...], source: Source, settings: RuntimeSettings) -> Limits:
    """Of a folder's model, without its outputs."""
    texts = inputs[0].name == bert_graph.INPUT_IDS
    return Limits(
        inputs=inputs,
        outputs=(),
        max_length=source.longest,
        length_input=bert_graph.INPUT_IDS if texts else None,
        mask_input=bert_graph.ATTENTION_MASK if texts else None,
        optional_inputs=tuple(spec.name for spec in inputs[1:]),
        precision=settings.precision,
        platform="pytorch_eager",
    )


def from_archive(source: Source, settings: RuntimeSettings) -> TorchModel:
    """The model of a `torch.export` archive.

    Raises `RefusedArtifact` if loading it could run code, `LoadError` if it cannot run batches.
    """
    if settings.precision != "fp32":
        raise LoadError(
            f"{source.path} runs in the precision that it was exported in; leave precision at "
            "fp32, or export the model cast to bfloat16"
        )
    program = torch_archive.load(source.path)
    if program.graph_signature.user_inputs_to_mutate:
        raise LoadError(f"{source.path} changes its inputs in place; export one that does not")
    nodes = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    given = program.graph_signature.user_inputs
    shapes: dict[str, torch.Tensor] = {name: nodes[name] for name in given if name in nodes}
    if not shapes or len(shapes) != len(given):
        raise LoadError("the archive has inputs that are not tensors; export it with tensors alone")
    batch = {_symbol(fake.shape, 0) for fake in shapes.values()}
    if len(batch) != 1 or None in batch:
        raise LoadError(
            f"{source.path}: axis 0 of every input must be one dynamic batch axis; export with "
            "dynamic_shapes={name: {0: torch.export.Dim('batch')}}"
        )
    length_input, axis = _length_input(shapes, settings), rows.axis(settings)
    symbol = _symbol(shapes[length_input].shape, axis) if length_input else None
    longest = rows.longest(settings, _bound(program, symbol)) if symbol else None
    outputs = _archive_outputs(program)
    mask, in_spec = _mask(shapes, settings, symbol), program.call_spec.in_spec
    return TorchModel(
        module=program.module(),
        bind=lambda module: _by_name(module, in_spec, tuple(outputs)),
        limits=Limits(
            inputs=_specs(shapes),
            outputs=_specs(outputs),
            max_rows=_bound(program, _symbol(next(iter(shapes.values())).shape, 0)),
            max_length=longest,
            length_input=length_input,
            length_axis=axis,
            mask_input=mask,
            optional_inputs=(mask,) if mask else (),
            platform="pytorch_export",
            id_bounds=_id_bounds(program, tuple(shapes)),
        ),
        cut_axes=_axes_of(symbol, outputs),
        lengthwise=_axes_of(symbol, shapes),
    )


def _archive_outputs(program: Any) -> dict[str, torch.Tensor]:
    """A fake tensor for each output, by name: a dict's keys, else `output`, or `output_0`,
    `output_1` … for several."""
    (results,) = next(node for node in program.graph.nodes if node.op == "output").args
    fakes = [node.meta["val"] for node in results[-len(program.graph_signature.user_outputs) :]]
    tree = pytree.tree_unflatten(range(len(fakes)), program.call_spec.out_spec)
    if isinstance(tree, dict) and all(isinstance(place, int) for place in tree.values()):
        return {str(name): fakes[place] for name, place in tree.items()}
    if len(fakes) == 1:
        return {"output": fakes[0]}
    return {f"output_{place}": fake for place, fake in enumerate(fakes)}


def _id_bounds(program: Any, inputs: tuple[str, ...]) -> dict[str, int]:
    """Inputs that are indices of a table, with the smallest number of the tables' rows.

    The bound matters on a GPU: a larger index would not fail the batch but destroy the CUDA
    context.
    """
    bounds: dict[str, int] = {}
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.embedding.default and node.args[1].name in inputs:
            name, entries = node.args[1].name, int(node.args[0].meta["val"].shape[0])
            bounds[name] = min(entries, bounds.get(name, entries))
    return bounds


def _by_name(
    module: Any, in_spec: Any, names: tuple[str, ...]
) -> Callable[..., Mapping[str, torch.Tensor]]:
    def call(*tensors: torch.Tensor) -> Mapping[str, torch.Tensor]:
        arguments, options = pytree.tree_unflatten(tensors, in_spec)
        leaves = pytree.tree_leaves(module(*arguments, **options))
        return dict(zip(names, leaves, strict=True))

    return call


def _length_input(shapes: Mapping[str, torch.Tensor], settings: RuntimeSettings) -> str | None:
    """The input of the settings, else `input_ids`, else the first with a dynamic length axis."""
    configured, axis = settings.length_input, rows.axis(settings)
    dynamic = [name for name, fake in shapes.items() if _symbol(fake.shape, axis)]
    if configured is None:
        preferred = [name for name in dynamic if name == bert_graph.INPUT_IDS]
        return next(iter(preferred + dynamic), None)
    if configured not in dynamic:
        raise LoadError(
            f"lengths.input is '{configured}', but the inputs with a dynamic axis {axis} are: "
            f"{', '.join(dynamic) or 'none'}"
        )
    return configured


def _mask(
    shapes: Mapping[str, torch.Tensor], settings: RuntimeSettings, symbol: str | None
) -> str | None:
    name = settings.mask_input or bert_graph.ATTENTION_MASK
    fits = (
        name in shapes and len(shapes[name].shape) == 2 and _symbol(shapes[name].shape, 1) == symbol
    )
    if symbol and fits and shapes[name].dtype == torch.int64:
        return name
    if settings.mask_input:
        raise LoadError(
            f"lengths.mask is '{name}', which is no INT64 input of the shape [rows, length]"
        )
    return None


def _symbol(shape: torch.Size, axis: int) -> str | None:
    """The name of a dynamic size, None for a fixed one."""
    if axis >= len(shape) or not isinstance(shape[axis], torch.SymInt):
        return None
    return str(shape[axis])


def _axes_of(symbol: str | None, shapes: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """By name, the first axis whose size is `symbol` itself, not an expression of it."""
    return {
        name: axis
        for name, fake in shapes.items()
        for axis in reversed(range(1, len(fake.shape)))
        if symbol is not None and _symbol(fake.shape, axis) == symbol
    }


def _bound(program: Any, symbol: str | None) -> int | None:
    for key, allowed in program.range_constraints.items():
        if str(key) == symbol and allowed.upper < UNBOUNDED:
            return int(allowed.upper)
    return None


def _specs(fakes: Mapping[str, torch.Tensor]) -> tuple[TensorSpec, ...]:
    found = []
    for name, fake in fakes.items():
        if fake.dtype not in DATATYPES:
            raise LoadError(f"'{name}' is {fake.dtype}, a type that requests cannot have")
        sizes = (size if type(size) is int else -1 for size in fake.shape)
        found.append(TensorSpec(name, DATATYPES[fake.dtype], tuple(sizes)))
    return tuple(found)


Array = np.ndarray[Any, Any]
COMPUTED = ("call_function", "call_method", "call_module")


def trace(settings: RuntimeSettings, arrays: Mapping[str, Array]) -> list[TracedTensor]:
    """See `runtimes.layers.trace`."""
    if settings.source is None:
        raise LoadError("the torch runtime needs a source: a model folder or a .pt2 archive")
    source = inspect(settings.source, settings.cache_dir)
    if source.path.is_dir():
        made = from_folder(source, settings, option_parser.parse(TorchOptions, settings.options))
    else:
        made = from_archive(source, settings)
    tensors = [torch.from_numpy(np.array(arrays[spec.name])) for spec in made.limits.inputs]
    module = made.module
    if not isinstance(module, fx.GraphModule):  # for these shapes alone
        module = torch.export.export(module, tuple(tensors)).module()
    tracing = _Tracing(module)
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
            weights = [str(each.target) for each in node.all_input_nodes if each.op == "get_attr"]
            kind = " ".join([getattr(node.target, "__name__", str(node.target)), *weights[:1]])
            array = value.float().cpu().numpy()
            self.layers.append(TracedTensor(node.name, "", kind, inputs, array))
        return value
