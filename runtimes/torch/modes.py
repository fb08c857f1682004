"""Sets up a torch model to run eagerly, compiled, or as CUDA graphs.

Chooses the device, moves the model there, wraps its network as the option `mode` says, and returns
the runner that feeds it. If the machine or the model lacks what the options ask for, a `LoadError`
says so before anything runs. This module imports torch.

Compiled: rows and length are dynamic sizes of one graph. torch specialises a size of 1, so a batch
of a single row has a second graph, and lengths are at least 2. Both graphs are compiled at the
start; a batch whose shape would need another one runs uncompiled. Source: torch's documentation of
dynamic shapes and of `torch.compiler.set_stance`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from runtimes import warmup
from runtimes.errors import BadRows, LoadError, RunError
from runtimes.graph.options import check_layout
from runtimes.options import CPU, Device, check_gpu_has, chosen_device
from runtimes.torch import batch as torch_batch
from runtimes.torch import model as torch_model
from runtimes.torch.model import TorchModel
from runtimes.torch.options import TorchOptions
from runtimes.torch.runner import (
    Array,
    CudaRunner,
    HostRunner,
    Network,
    Runner,
    bounds,
    gpus,
    settle_memory,
    tensor_of,
)
from runtimes.types import RuntimeSettings
from runtimes.warmup import Shape

SHORTEST = 2  # tokens of a row: torch would compile a size of 1 separately
COMPILED_ROWS = (2, 1)  # the general graph first: it takes every batch but a single row
PROBE_LENGTH = 3  # differs from both numbers of rows, or torch would take the two sizes for one


class CompiledCall:
    """A module whose first calls compile it; after `seal`, calls compile nothing.

    Called with tensors in the inputs' order.
    """

    def __init__(self, module: Any) -> None:
        self._module = torch.compile(module)
        self._sealed = False

    def __call__(self, *tensors: torch.Tensor, **named: torch.Tensor) -> Any:
        if not self._sealed:
            return self._module(*tensors, **named)
        with torch.compiler.set_stance("eager_on_recompile"):
            return self._module(*tensors, **named)

    def seal(self) -> None:
        """From now on, a shape without a compiled graph runs uncompiled."""
        self._sealed = True


def compile_all(
    call: Callable[..., Any],
    examples: Callable[[int], Sequence[torch.Tensor]],
    lengthwise: Sequence[int | None],
    progress: Callable[[str, float], None],
) -> None:
    """Compiles `call` for both numbers of rows. Raises `LoadError` if the compiler fails.

    `examples(rows)`: input tensors of so many rows. `lengthwise`: for each input, the axis that
    follows the length, if one does.
    """
    for done, rows in enumerate(COMPILED_ROWS):
        progress("compiling", done / len(COMPILED_ROWS))
        tensors = examples(rows)
        for tensor, follows in zip(tensors, lengthwise, strict=True):
            for axis in (0, follows):
                if axis is not None and tensor.shape[axis] > 1:
                    torch._dynamo.maybe_mark_dynamic(tensor, axis)  # type: ignore[no-untyped-call]
        try:
            with torch.inference_mode():
                call(*tensors)
        except Exception as error:  # the compiler raises many types
            raise LoadError(
                f"torch cannot compile the model, set option mode to eager: {error}"
            ) from error
    progress("compiling", 1.0)


def opened(
    model: TorchModel, settings: RuntimeSettings, options: TorchOptions
) -> tuple[TorchModel, Runner]:
    """The model on its device, and the runner that runs it there. Raises `LoadError`."""
    check_layout(options.layout, model.limits.inputs)
    place = chosen_device(options.device, gpus(), "torch")
    if options.mode == "cuda_graphs" and not place.is_cuda:
        raise LoadError("option 'mode' is cuda_graphs, but torch sees no CUDA GPU: use compile")
    if place.is_cuda:
        settle_memory(options.expandable_segments)
        total = torch.cuda.get_device_properties(place.index).total_memory
        check_gpu_has(options.gpu_memory_mib, total, place)
        bounds.set(id(settings), place.index, options.gpu_memory_mib, total)
    try:
        return _opened_on(place, model, settings, options)
    except BaseException as error:
        if place.is_cuda:
            _give_back(model, settings)
        if isinstance(error, torch.OutOfMemoryError):
            raise LoadError(f"{place} has no memory for the model: {error}") from error
        raise


def _opened_on(
    place: Device, model: TorchModel, settings: RuntimeSettings, options: TorchOptions
) -> tuple[TorchModel, Runner]:
    model = torch_model.prepared(model, torch.device(str(place)), options.channels_last)
    if options.mode == "compile":
        return _declared(model, "compile"), _compiled(model, settings, options)
    if options.mode == "cuda_graphs":
        model = _declared(model, "cuda_graphs")
        edges = warmup.fixed_edges(settings, model.limits)
        model = replace(model, limits=replace(model.limits, fixed_edges=edges))
    return model, _runner(model, settings, options, Network(model.bind(model.module), model.floats))


def closed(model: TorchModel, settings: RuntimeSettings, runner: Runner) -> None:
    runner.close()
    if model.limits.device != CPU.kind:
        _give_back(model, settings)


def _give_back(model: TorchModel, settings: RuntimeSettings) -> None:
    """What the model took of its GPU, also to other backends in this process. Its modules stand in
    cycles, which would hold the weights until Python looks for cycles."""
    for tensor in (*model.module.parameters(), *model.module.buffers()):
        tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    torch.cuda.empty_cache()
    bounds.drop(id(settings))


def _compiled(model: TorchModel, settings: RuntimeSettings, options: TorchOptions) -> Runner:
    wrapped = CompiledCall(model.module)
    call, place = model.bind(wrapped), torch.device(model.limits.device)

    def examples(rows: int) -> list[torch.Tensor]:
        arrays = _example(model, (rows, PROBE_LENGTH))
        return [tensor_of(array).to(place) for array in arrays]

    lengthwise = [model.lengthwise.get(spec.name) for spec in model.limits.inputs]
    compile_all(call, examples, lengthwise, settings.progress)
    wrapped.seal()
    shortest = SHORTEST if model.limits.length_input is not None else 1
    return _runner(model, settings, options, Network(call, model.floats, shortest))


def _runner(
    model: TorchModel, settings: RuntimeSettings, options: TorchOptions, network: Network
) -> Runner:
    limits = model.limits
    if limits.device == CPU.kind:
        return HostRunner(network)
    captured = warmup.shapes(settings, limits) if options.mode == "cuda_graphs" else ()
    place, examples = torch.device(limits.device), partial(_example, model)
    runner = CudaRunner(network, place, examples, captured, options.pinned)
    # The largest comes first: the others share its memory.
    for done, (rows, length) in enumerate(captured):
        settings.progress("compiling", done / len(captured))
        try:
            runner.capture((rows, length))
        except (BadRows, RunError) as error:
            raise LoadError(
                f"torch cannot capture {rows} rows of length {length}; set option mode to compile "
                f"or eager, or lower batch.max_size: {error}"
            ) from error
    return runner


def _example(model: TorchModel, shape: Shape) -> list[Array]:
    """Inputs of zeros in a batch's shape."""
    rows, length = shape
    return torch_batch.arrays(warmup.batch(model.limits, rows, length), model, rows, length)


def _declared(model: TorchModel, mode: str) -> TorchModel:
    platform = model.limits.platform.removesuffix("_eager")
    return replace(model, limits=replace(model.limits, platform=f"{platform}_{mode}"))
