"""Sets up a torch model to run eagerly, compiled, or as CUDA graphs.

Chooses the device, moves the model there, wraps its network as the option `mode` says, and returns
the runner that feeds it. If the machine or the model lacks what the options ask for, a `LoadError`
says so before anything runs. This module imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from runtimes import device, shapes, warmup
from runtimes.errors import BadRows, LoadError, RunError
from runtimes.graph import layout
from runtimes.shapes import Shape
from runtimes.torch import batch as torch_batch
from runtimes.torch import compile as torch_compile
from runtimes.torch import model as torch_model
from runtimes.torch.compile import CompiledCall
from runtimes.torch.cuda import CudaRunner, gpus, settle_memory
from runtimes.torch.model import TorchModel
from runtimes.torch.options import TorchOptions
from runtimes.torch.runner import Array, HostRunner, Network, Runner, tensor_of
from runtimes.types import RuntimeSettings


def opened(
    model: TorchModel, settings: RuntimeSettings, options: TorchOptions
) -> tuple[TorchModel, Runner]:
    """The model on its device, and the runner that runs it there. Raises `LoadError`."""
    layout.check(options.layout, model.limits.inputs)
    place = device.chosen(options.device, gpus(), "torch")
    if options.mode == "cuda_graphs" and not place.is_cuda:
        raise LoadError("option 'mode' is cuda_graphs, but torch sees no CUDA GPU: use compile")
    if place.is_cuda:
        settle_memory(options.expandable_segments)
    model = torch_model.prepared(model, torch.device(str(place)), options.channels_last)
    if options.mode == "compile":
        return _declared(model, "compile"), _compiled(model, settings, options)
    if options.mode == "cuda_graphs":
        model = _declared(model, "cuda_graphs")
        edges = shapes.fixed_edges(settings, model.limits)
        model = replace(model, limits=replace(model.limits, fixed_edges=edges))
    return model, _runner(model, settings, options, Network(model.bind(model.module), model.floats))


def _compiled(model: TorchModel, settings: RuntimeSettings, options: TorchOptions) -> Runner:
    wrapped = CompiledCall(model.module)
    call, place = model.bind(wrapped), torch.device(model.limits.device)

    def examples(rows: int) -> list[torch.Tensor]:
        arrays = _example(model, (rows, torch_compile.PROBE_LENGTH))
        return [tensor_of(array).to(place) for array in arrays]

    lengthwise = [model.lengthwise.get(spec.name) for spec in model.limits.inputs]
    torch_compile.compile_all(call, examples, lengthwise, settings.progress)
    wrapped.seal()
    shortest = torch_compile.SHORTEST if model.limits.length_input is not None else 1
    return _runner(model, settings, options, Network(call, model.floats, shortest))


def _runner(
    model: TorchModel, settings: RuntimeSettings, options: TorchOptions, network: Network
) -> Runner:
    limits = model.limits
    if limits.device == device.CPU.kind:
        return HostRunner(network)
    captured = warmup.shapes(settings, limits) if options.mode == "cuda_graphs" else ()
    place, examples = torch.device(limits.device), partial(_example, model)
    runner = CudaRunner(network, place, examples, captured, options.pinned)
    _capture(runner, captured, settings)
    return runner


def _capture(runner: CudaRunner, wanted: Sequence[Shape], settings: RuntimeSettings) -> None:
    """Captures the shapes, of which the largest comes first: the others share its memory."""
    for done, (rows, length) in enumerate(wanted):
        settings.progress("compiling", done / len(wanted))
        try:
            runner.capture((rows, length))
        except (BadRows, RunError) as error:
            raise LoadError(
                f"torch cannot capture {rows} rows of length {length}; set option mode to compile "
                f"or eager, or lower batch.max_size: {error}"
            ) from error


def _example(model: TorchModel, shape: Shape) -> list[Array]:
    """Inputs of zeros in a batch's shape."""
    rows, length = shape
    return torch_batch.arrays(warmup.batch(model.limits, rows, length), model, rows, length)


def _declared(model: TorchModel, mode: str) -> TorchModel:
    platform = model.limits.platform.removesuffix("_eager")
    return replace(model, limits=replace(model.limits, platform=f"{platform}_{mode}"))
