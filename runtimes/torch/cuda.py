"""Runs batches on a GPU, and copies the next batch there while one computes.

Inputs are copied into pinned buffers, and from there to the GPU on a CUDA stream for copies. The
network computes on a second stream, which waits for the copy by an event; the CPU does not wait.
There are two sets of pinned buffers, so that one batch can be copied while another computes; an
event says when a set may be overwritten. Outputs come back through pinned buffers on the computing
stream; its synchronisation is the only wait of the CPU.

With captured CUDA graphs, a batch is padded to a captured shape, copied into the graph's own inputs
and replayed. All graphs share one pool of memory. Source: torch's documentation of CUDA semantics
(streams, pinned memory, `torch.cuda.CUDAGraph`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch

from runtimes.cuda.captured import CapturedShapes
from runtimes.shapes import Shape
from runtimes.torch.runner import Network, array_of, faults, taken, tensor_of
from runtimes.types import StageTimes

Array = np.ndarray[Any, Any]
SETS = 2  # of pinned buffers: one batch computes while the next is copied
RUNS_BEFORE_CAPTURE = 3  # in their first runs, libraries choose kernels and allocate workspace


@dataclass(slots=True)
class _Buffers:
    """A set of pinned buffers."""

    free: Any  # CUDA event, recorded after the copies that read the buffers
    pinned: dict[int, torch.Tensor] = field(default_factory=dict)  # by an input's position

    def filled(self, place: int, tensor: torch.Tensor) -> torch.Tensor:
        """A pinned copy of a tensor. Buffers grow to the next power of two and never shrink."""
        size = tensor.numel() * tensor.element_size()
        held = self.pinned.get(place)
        if held is None or held.numel() < size:
            grown = 1 << max(size - 1, 0).bit_length()
            held = self.pinned[place] = torch.empty(grown, dtype=torch.uint8, pin_memory=True)
        view = held[:size].view(tensor.dtype).view(tensor.shape)
        view.copy_(tensor)
        return view


@dataclass(frozen=True, slots=True)
class Put:
    """A batch's inputs; they are on the device once the event `ready` has occurred there."""

    tensors: list[torch.Tensor]
    ready: Any
    shape: Shape


@dataclass(frozen=True, slots=True)
class _Replay:
    graph: Any
    inputs: list[torch.Tensor]
    outputs: dict[str, torch.Tensor]


class CudaRunner:
    """A `Runner` on one GPU.

    `examples(shape)`: input arrays with which a shape is captured. `shapes`: those to capture as
    CUDA graphs; none for a runner without graphs. `pinned`: copy through pinned memory.
    """

    def __init__(
        self,
        network: Network,
        device: torch.device,
        examples: Callable[[Shape], Sequence[Array]],
        shapes: Sequence[Shape] = (),
        pinned: bool = True,
    ) -> None:
        self._network = network
        self._device = device
        self._examples = examples
        self._pinned = pinned
        self._copying = torch.cuda.Stream(device)
        self._computing = torch.cuda.Stream(device)
        self._sets = [_Buffers(torch.cuda.Event()) for _ in range(SETS)]
        self._next = 0
        self._pool = torch.cuda.graph_pool_handle() if shapes else None
        self._graphs: CapturedShapes[_Replay] = CapturedShapes(shapes, self._captured)
        self._out = _Buffers(torch.cuda.Event())

    def shape_for(self, rows: int, length: int) -> Shape:
        return self._graphs.shape_for(rows, max(length, self._network.shortest))

    def put(self, arrays: Sequence[Array], shape: Shape) -> Put:
        buffers = self._sets[self._next]
        self._next = (self._next + 1) % SETS
        with faults(), torch.cuda.stream(self._copying):
            buffers.free.synchronize()
            tensors = [self._copied(array, at, buffers) for at, array in enumerate(arrays)]
            buffers.free.record(self._copying)
            ready = torch.cuda.Event()
            ready.record(self._copying)
        return Put(tensors, ready, shape)

    def compute(self, put: Put, names: Sequence[str], times: StageTimes) -> list[Array]:
        begin = perf_counter()
        with faults(), torch.inference_mode(), torch.cuda.stream(self._computing):
            self._computing.wait_event(put.ready)
            for tensor in put.tensors:
                tensor.record_stream(self._computing)
            answers = self._answers(put)
            found = taken(self._network, answers, names)
            self._computing.synchronize()
            computed = perf_counter()
            arrays = self._fetched(found)
        times.run_s += computed - begin
        times.copy_out_s += perf_counter() - computed
        return arrays

    def capture(self, shape: Shape) -> None:
        with faults():
            self._graphs.capture(shape)

    def close(self) -> None:
        torch.cuda.synchronize(self._device)
        self._graphs.clear()
        for buffers in (*self._sets, self._out):
            buffers.pinned.clear()

    def _copied(self, array: Array, place: int, buffers: _Buffers) -> torch.Tensor:
        tensor = tensor_of(array)
        source = buffers.filled(place, tensor) if self._pinned else tensor
        return source.to(self._device, non_blocking=self._pinned)

    def _answers(self, put: Put) -> Any:
        replay = self._graphs.replay_of(put.shape)
        if replay is None:
            return self._network.call(*put.tensors)
        for own, given in zip(replay.inputs, put.tensors, strict=True):
            own.copy_(given, non_blocking=True)
        replay.graph.replay()
        return replay.outputs

    def _fetched(self, tensors: Sequence[torch.Tensor]) -> list[Array]:
        """Copies for the caller, since pinned buffers and a graph's outputs are overwritten."""
        if not self._pinned:
            return [array_of(tensor.cpu()) for tensor in tensors]
        fetched = [self._out.filled(at, tensor) for at, tensor in enumerate(tensors)]
        return [array_of(tensor).copy() for tensor in fetched]

    def _captured(self, shape: Shape) -> _Replay:
        inputs = [tensor_of(array).to(self._device) for array in self._examples(shape)]
        with torch.inference_mode(), torch.cuda.stream(self._computing):
            for _ in range(RUNS_BEFORE_CAPTURE):
                self._network.call(*inputs)
            self._computing.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._computing):
                outputs = dict(self._network.call(*inputs))
        return _Replay(graph, inputs, outputs)


def gpus() -> int:
    """The number of GPUs that this build of torch can use here."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def settle_memory(expandable: bool) -> None:
    """Sets how the CUDA allocator grows; holds for later allocations only."""
    chosen = f"expandable_segments:{expandable}"
    if hasattr(torch._C, "_accelerator_setAllocatorSettings"):  # since torch 2.10
        torch._C._accelerator_setAllocatorSettings(chosen)
    else:
        torch.cuda.memory._set_allocator_settings(chosen)  # type: ignore[no-untyped-call]
