"""Runs a torch network on numpy arrays, on the CPU or on a GPU.

A runner first puts arrays on its device (`put`) and later computes with them (`compute`). On the
CPU, tensors share the arrays' memory. On a GPU, inputs go through pinned buffers on a stream for
copies; the network computes on a second stream, which waits for the copy by an event. Two sets of
buffers let one batch be copied while another computes. With captured CUDA graphs, a batch is padded
to a captured shape, copied into the graph's own inputs and replayed.

A fault of the rows that only the model can detect becomes `BadRows`, a lack of memory
`OutOfMemory`, a lost GPU `Unhealthy`, and every other fault `RunError`. Source: torch's
documentation of CUDA semantics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch

from runtimes.errors import BadRows, Unhealthy, failed, lacks_memory
from runtimes.types import DTYPES, StageTimes
from runtimes.warmup import CapturedShapes, Shape

Array = np.ndarray[Any, Any]
Call = Callable[..., Mapping[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Network:
    """A network that is ready to run."""

    call: Call  # see `TorchModel.bind`
    floats: frozenset[str]  # outputs that are float32 at any precision
    shortest: int = 1  # every row is padded to this length at least


class Runner(Protocol):
    """Runs batches on one device.

    `shape_for`: the shape to pad a batch to. `put`: copies a batch to the device; one thread may
    call it while another is in `compute`. `compute`: the requested outputs, as arrays that belong
    to the caller.
    """

    def shape_for(self, rows: int, length: int) -> Shape: ...
    def put(self, arrays: Sequence[Array], shape: Shape) -> Any: ...
    def compute(self, put: Any, names: Sequence[str], times: StageTimes) -> list[Array]: ...
    def close(self) -> None: ...


class HostRunner:
    """A `Runner` on the CPU."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def shape_for(self, rows: int, length: int) -> Shape:
        return rows, max(length, self._network.shortest)

    def put(self, arrays: Sequence[Array], shape: Shape) -> list[torch.Tensor]:
        return [tensor_of(array) for array in arrays]

    def compute(
        self, put: list[torch.Tensor], names: Sequence[str], times: StageTimes
    ) -> list[Array]:
        begin = perf_counter()
        with Faults(), torch.inference_mode():
            answers = self._network.call(*put)
        computed = perf_counter()
        found = [array_of(tensor) for tensor in taken(self._network, answers, names)]
        times.run_s += computed - begin
        times.copy_out_s += perf_counter() - computed
        return found

    def close(self) -> None:
        pass


class Faults:
    """A context that maps torch's exceptions to the runtimes' own.

    No generator: where one raises another exception than it was given, the first one is from Python
    3.12 on part of a cycle. So are the frames of what failed, which name tensors: their memory
    would stay taken until Python looks for cycles, and the batch's halves would fail too. For the
    same reason no frame here keeps the new exception in a name.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        if not isinstance(error, Exception):
            return
        # An index beyond a table's rows, or a size that the exported graph forbids; compiled code's
        # message for such an index.
        if isinstance(error, IndexError | AssertionError) or "index out of bounds" in str(error):
            raise BadRows(f"the model does not take these rows: {error}") from error
        if "CUDA error" in str(error) and not lacks_memory(error):
            # This process cannot use the device any more.
            raise Unhealthy(f"the GPU is lost: {error}") from error
        raise failed(f"torch failed on the batch: {error}", error) from error


def tensor_of(array: Array) -> torch.Tensor:
    """A tensor on the array's own memory; on a copy if the array is read-only, which torch's
    tensors cannot be."""
    writable = array if array.flags.writeable else array.copy()
    if array.dtype == DTYPES["BF16"]:
        return torch.from_numpy(writable.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(writable)


def taken(
    network: Network, answers: Mapping[str, torch.Tensor], names: Sequence[str]
) -> list[torch.Tensor]:
    """The outputs `names`. Those that are declared FP32 are converted from bf16 or fp16."""
    found = ((name, answers[name]) for name in names)
    return [tensor.float() if name in network.floats else tensor for name, tensor in found]


def array_of(tensor: torch.Tensor) -> Array:
    """An array on the memory of a tensor, which must be on the CPU."""
    if tensor.dtype == torch.bfloat16:
        bits: Array = tensor.contiguous().view(torch.int16).numpy()
        return bits.view(DTYPES["BF16"])
    array: Array = tensor.numpy()
    return array


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
        with Faults(), torch.cuda.stream(self._copying):
            buffers.free.synchronize()
            tensors = []
            for at, source in enumerate(map(tensor_of, arrays)):
                held = buffers.filled(at, source) if self._pinned else source
                tensors.append(held.to(self._device, non_blocking=self._pinned))
            buffers.free.record(self._copying)
            ready = torch.cuda.Event()
            ready.record(self._copying)
        return Put(tensors, ready, shape)

    def compute(self, put: Put, names: Sequence[str], times: StageTimes) -> list[Array]:
        begin = perf_counter()
        with Faults(), torch.inference_mode(), torch.cuda.stream(self._computing):
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
        with Faults():
            self._graphs.capture(shape)

    def close(self) -> None:
        torch.cuda.synchronize(self._device)
        self._graphs.clear()
        for buffers in (*self._sets, self._out):
            buffers.pinned.clear()

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


class MemoryBounds:
    """The most that torch's allocator may take of each GPU. It has one bound a GPU for the whole
    process, so models in the same process (`model`: a number of its own) get the sum of theirs, and
    no bound as long as one of them has none. `set_fraction(share, index)` tells it."""

    def __init__(self, set_fraction: Callable[[float, int], None]) -> None:
        self._set_fraction = set_fraction
        self._of: dict[int, tuple[int, int | None, int]] = {}  # by model: GPU, MiB, all its bytes

    def set(self, model: int, index: int, mib: int | None, total_bytes: int) -> None:
        self._of[model] = index, mib, total_bytes
        self._tell(index, total_bytes)

    def drop(self, model: int) -> None:
        """Nothing for a model that has no place."""
        index, _, total_bytes = self._of.pop(model, (-1, None, 0))
        if total_bytes:
            self._tell(index, total_bytes)

    def _tell(self, index: int, total_bytes: int) -> None:
        bounds = [mib for place, mib, _ in self._of.values() if place == index]
        known = [mib << 20 for mib in bounds if mib is not None]
        share = sum(known) / total_bytes if known and len(known) == len(bounds) else 1.0
        self._set_fraction(min(share, 1.0), index)


bounds = MemoryBounds(torch.cuda.set_per_process_memory_fraction)


def settle_memory(expandable: bool) -> None:
    """Sets how the CUDA allocator grows; holds for later allocations only."""
    chosen = f"expandable_segments:{expandable}"
    if hasattr(torch._C, "_accelerator_setAllocatorSettings"):  # since torch 2.10
        torch._C._accelerator_setAllocatorSettings(chosen)
    else:
        torch.cuda.memory._set_allocator_settings(chosen)  # type: ignore[no-untyped-call]
