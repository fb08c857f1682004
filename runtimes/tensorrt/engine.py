"""Runs batches on TensorRT's engines.

Each engine has an execution context for each of its profiles. All contexts share one CUDA stream,
and buffers at fixed addresses that are large enough for the largest batch of any profile. A batch
runs on the first engine and profile whose range contains its shape. If a captured CUDA graph fits,
the batch is filled up to the graph's rows and the graph is replayed instead. Inputs are copied
through pinned memory; only the requested outputs are copied back.

The TensorRT library and the GPU's memory are passed in, so that tests run without either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from runtimes.cuda import CudaMemory
from runtimes.errors import LoadError, RunError
from runtimes.graph.dense import GraphFacts
from runtimes.tensorrt import plans
from runtimes.tensorrt.plans import EnginePlan
from runtimes.types import DTYPES, Limits, StageTimes, TensorSpec
from runtimes.warmup import CapturedShapes, Shape

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class _Port:
    """A tensor's buffers on the device and in pinned memory.

    Their addresses never change, because captured graphs store them.
    """

    spec: TensorSpec
    device: int  # address
    host: Array

    def view(self, shape: tuple[int, ...]) -> Array:
        """The beginning of the pinned buffer, as an array of that shape."""
        dtype = DTYPES[self.spec.datatype]
        return self.host[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


@dataclass(frozen=True, slots=True)
class Engines:
    """A model's engines, and what they need to know of its inputs."""

    plans: tuple[EnginePlan, ...]
    opened: Mapping[str, Any]  # deserialised engines, by the name of their plan
    length_input: str | None  # the input whose size on `length_axis` is a batch's length
    length_axis: int | None  # the axis of inputs and outputs that follows the length; None: none
    edges: tuple[int, ...]  # of buckets
    shapes: tuple[Shape, ...]  # to capture as CUDA graphs


class TensorRTEngine:
    """A `graph.runtime.Engine`. Owns the device memory and frees it in `close`."""

    platform = "tensorrt_plan"

    def __init__(
        self, engines: Engines, facts: GraphFacts, memory: CudaMemory, device: str
    ) -> None:
        self.facts, self.device = facts, device
        self._engines, self._memory = engines, memory
        self._contexts: dict[tuple[str, int], Any] = {}
        self._ports: dict[str, _Port] = {}
        self._shapes_of: dict[Shape, dict[str, tuple[int, ...]]] = {}  # of tensors, by batch shape
        self._graphs: CapturedShapes[Callable[[], None]] = CapturedShapes((), self._captured)
        try:
            self._contexts = {
                (plan.name, number): self._context(plan.name, number)
                for plan in engines.plans
                for number in range(len(plan.profiles))
            }
            self._ports = self._all_ports()
        except BaseException:
            self.close()
            raise

    def prepare(self, limits: Limits) -> tuple[int, ...]:
        """Captures the graphs, largest first, and returns the buckets' edges."""
        self._graphs = CapturedShapes(self._engines.shapes, self._captured)
        for shape in self._engines.shapes:
            self._graphs.capture(shape)
        return self._engines.edges

    def infer(
        self, arrays: Mapping[str, Array], outputs: Sequence[str], times: StageTimes
    ) -> list[Array]:
        self._memory.enter()  # this thread may not be the one that loaded the model
        rows, length = self._size(arrays)
        shape = self._graphs.shape_for(rows, length, same_length=True)
        begin = perf_counter()
        self._fill(arrays, shape[0])
        ready = perf_counter()
        replay = self._graphs.replay_of(shape) or self._enqueuer(shape)
        replay()
        self._memory.wait()
        done = perf_counter()
        found = self._fetch(outputs, shape, rows)
        times.copy_in_s += ready - begin
        times.run_s += done - ready
        times.copy_out_s += perf_counter() - done
        return found

    def close(self) -> None:
        self._graphs.clear()
        self._contexts, self._ports = {}, {}
        self._memory.enter()
        self._memory.close()

    def _size(self, arrays: Mapping[str, Array]) -> Shape:
        name = self._engines.length_input
        first = arrays[name] if name else next(iter(arrays.values()))
        axis = self._engines.length_axis
        return first.shape[0], first.shape[axis] if name and axis is not None else 1

    def _context(self, name: str, number: int) -> Any:
        context = self._engines.opened[name].create_execution_context()
        if context is None:
            raise LoadError(f"TensorRT has no memory for the {name} engine's context {number}")
        if not context.set_optimization_profile_async(number, self._memory.stream):
            raise LoadError(f"TensorRT rejects profile {number} of the {name} engine")
        self._memory.wait()
        return context

    def _all_ports(self) -> dict[str, _Port]:
        """Buffers by tensor, large enough for the largest batch of any profile.

        The contexts compute the shapes of outputs.
        """
        largest = dict.fromkeys((spec.name for spec in self._specs()), 0)
        for plan in self._engines.plans:
            for number, profile in enumerate(plan.profiles):
                maximum = (profile.rows.most, profile.lengths.most)
                shapes = self._shaped(self._contexts[plan.name, number], maximum)
                for name, sizes in shapes.items():
                    largest[name] = max(largest[name], math.prod(sizes))
        return {spec.name: self._port(spec, largest[spec.name]) for spec in self._specs()}

    def _port(self, spec: TensorSpec, elements: int) -> _Port:
        """Both buffers hold zeros, because graphs are captured before any batch: an id that memory
        happened to hold would index outside its table."""
        size = elements * DTYPES[spec.datatype].itemsize
        port = _Port(spec, self._memory.device(size), self._memory.host(size))
        port.host[:] = 0
        self._memory.copy_in(port.device, port.host)
        return port

    def _specs(self) -> tuple[TensorSpec, ...]:
        return *self.facts.inputs, *self.facts.outputs

    def _shaped(self, context: Any, shape: Shape) -> dict[str, tuple[int, ...]]:
        """Sets a context's input shapes; returns the shapes of all tensors. Raises `RunError`."""
        axis = self._engines.length_axis
        shapes = {spec.name: plans.shape(spec, axis, *shape) for spec in self.facts.inputs}
        for name, sizes in shapes.items():
            if not context.set_input_shape(name, sizes):
                raise RunError(f"TensorRT rejects input '{name}' in the shape {shape}")
        for spec in self.facts.outputs:
            shapes[spec.name] = tuple(context.get_tensor_shape(spec.name))
        return shapes

    def _fill(self, arrays: Mapping[str, Array], rows: int) -> None:
        """Copies inputs to the device through pinned memory; the last row fills missing rows."""
        for name, array in arrays.items():
            port = self._ports[name]
            view = port.view((rows, *array.shape[1:]))
            view[: array.shape[0]] = array
            view[array.shape[0] :] = array[-1:]
            self._memory.copy_in(port.device, view)

    def _fetch(self, outputs: Sequence[str], shape: Shape, rows: int) -> list[Array]:
        """Copies of the outputs, since the next batch overwrites the pinned memory."""
        views = []
        for name in outputs:
            port = self._ports[name]
            views.append(port.view(self._shapes_of[shape][name]))
            self._memory.copy_out(views[-1], port.device)
        self._memory.wait()
        return [view[:rows].copy() for view in views]

    def _enqueuer(self, shape: Shape) -> Callable[[], None]:
        """A function that enqueues a batch of this shape on the stream.

        Raises `RunError` if the shape is outside every profile's range.
        """
        key = plans.chosen(self._engines.plans, *shape)
        if key is None:
            raise RunError(f"no TensorRT profile allows {shape[0]} rows of length {shape[1]}")
        context = self._contexts[key]
        self._shapes_of[shape] = self._shaped(context, shape)
        for name, port in self._ports.items():
            context.set_tensor_address(name, port.device)

        def enqueue() -> None:
            if not context.execute_async_v3(self._memory.stream):
                raise RunError(f"TensorRT could not start {shape[0]} rows of length {shape[1]}")

        return enqueue

    def _captured(self, shape: Shape) -> Callable[[], None]:
        enqueue = self._enqueuer(shape)
        enqueue()  # a shape's first run does work that cannot be captured
        self._memory.wait()
        return self._memory.captured(enqueue)
