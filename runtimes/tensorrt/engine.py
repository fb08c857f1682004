"""Batches on TensorRT's engines.

Each engine has one execution context a profile, all on one stream, and buffers for the largest
batch of any profile at fixed addresses. A batch goes to the first engine and profile that hold it,
or, where a graph was captured that does, is filled up to that graph's rows and replayed. Inputs
pass through pinned memory; only the outputs asked for come back.

The library and the GPU's memory are handed in, so that all of this runs without either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from runtimes.cuda.captured import CapturedShapes
from runtimes.cuda.memory import DeviceMemory
from runtimes.datatypes import DTYPES
from runtimes.errors import LoadError, RunError
from runtimes.shapes import Shape
from runtimes.signature import GraphFacts
from runtimes.tensorrt import profiles as tensorrt_profiles
from runtimes.tensorrt.profiles import EnginePlan
from runtimes.types import Limits, StageTimes, TensorSpec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class _Port:
    """A tensor's place on both sides; the addresses never change, as graphs keep them."""

    spec: TensorSpec
    device: int
    host: Array

    def view(self, shape: tuple[int, ...]) -> Array:
        dtype = DTYPES[self.spec.datatype]
        return self.host[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


@dataclass(frozen=True, slots=True)
class Engines:
    """`opened`: deserialised engines by name, as `plans` describe them. `length_axis`: which axis
    of inputs and outputs follows the length, None for rows without; `length_input`: whose size
    there is a batch's length. `shapes`: those to capture as graphs."""

    plans: tuple[EnginePlan, ...]
    opened: Mapping[str, Any]
    length_input: str | None
    length_axis: int | None
    edges: tuple[int, ...]
    shapes: tuple[Shape, ...]


class TensorRTEngine:
    """`graph.runtime.Engine`; owns the memory."""

    platform = "tensorrt_plan"

    def __init__(
        self, engines: Engines, facts: GraphFacts, memory: DeviceMemory, device: str
    ) -> None:
        self.facts, self.device = facts, device
        self._engines, self._memory = engines, memory
        self._contexts: dict[tuple[str, int], Any] = {}
        self._ports: dict[str, _Port] = {}
        self._given: dict[Shape, dict[str, tuple[int, ...]]] = {}  # outputs' shapes
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
        """Captures the graphs, largest first."""
        self._graphs = CapturedShapes(self._engines.shapes, self._captured)
        for shape in self._engines.shapes:
            self._graphs.capture(shape)
        return self._engines.edges

    def infer(
        self, arrays: Mapping[str, Array], outputs: Sequence[str], times: StageTimes
    ) -> list[Array]:
        self._memory.enter()  # another thread may run than loaded
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
            raise LoadError(f"TensorRT does not take profile {number} of the {name} engine")
        self._memory.wait()
        return context

    def _all_ports(self) -> dict[str, _Port]:
        """For the largest batch of any profile; what an output's shape is, a context says."""
        largest = dict.fromkeys((spec.name for spec in self._specs()), 0)
        for plan in self._engines.plans:
            for number, profile in enumerate(plan.profiles):
                most = (profile.rows.most, profile.lengths.most)
                shapes = self._shaped(self._contexts[plan.name, number], most)
                for name, sizes in shapes.items():
                    largest[name] = max(largest[name], math.prod(sizes))
        return {spec.name: self._port(spec, largest[spec.name]) for spec in self._specs()}

    def _port(self, spec: TensorSpec, elements: int) -> _Port:
        size = elements * DTYPES[spec.datatype].itemsize
        return _Port(spec, self._memory.device(size), self._memory.host(size))

    def _specs(self) -> tuple[TensorSpec, ...]:
        return *self.facts.inputs, *self.facts.outputs

    def _shaped(self, context: Any, shape: Shape) -> dict[str, tuple[int, ...]]:
        """Tells a context its inputs' shapes; all tensors' shapes then. Raises `RunError`."""
        shapes = {spec.name: self._shape(spec, *shape) for spec in self.facts.inputs}
        for name, sizes in shapes.items():
            if not context.set_input_shape(name, sizes):
                raise RunError(f"TensorRT does not take input '{name}' at {shape}")
        for spec in self.facts.outputs:
            shapes[spec.name] = tuple(context.get_tensor_shape(spec.name))
        return shapes

    def _shape(self, spec: TensorSpec, rows: int, length: int) -> tuple[int, ...]:
        return tensorrt_profiles.shape(spec, self._engines.length_axis, rows, length)

    def _fill(self, arrays: Mapping[str, Array], rows: int) -> None:
        """Into pinned memory and on to the device; missing rows repeat the last one."""
        for name, array in arrays.items():
            port = self._ports[name]
            view = port.view((rows, *array.shape[1:]))
            view[: array.shape[0]] = array
            view[array.shape[0] :] = array[-1:]
            self._memory.copy_in(port.device, view)

    def _fetch(self, outputs: Sequence[str], shape: Shape, rows: int) -> list[Array]:
        """Arrays of the caller's own: the pinned memory is the next batch's."""
        views = []
        for name in outputs:
            port = self._ports[name]
            views.append(port.view(self._given[shape][name]))
            self._memory.copy_out(views[-1], port.device)
        self._memory.wait()
        return [view[:rows].copy() for view in views]

    def _enqueuer(self, shape: Shape) -> Callable[[], None]:
        """What puts a batch of this shape on the stream. Raises `RunError` where none holds it."""
        key = tensorrt_profiles.chosen(self._engines.plans, *shape)
        if key is None:
            raise RunError(f"no TensorRT profile holds {shape[0]} rows of {shape[1]}")
        context = self._contexts[key]
        self._given[shape] = self._shaped(context, shape)
        for name, port in self._ports.items():
            context.set_tensor_address(name, port.device)

        def enqueue() -> None:
            if not context.execute_async_v3(self._memory.stream):
                raise RunError(f"TensorRT could not start {shape[0]} rows of {shape[1]}")

        return enqueue

    def _captured(self, shape: Shape) -> Callable[[], None]:
        enqueue = self._enqueuer(shape)
        enqueue()  # the first run of a shape does what cannot be captured
        self._memory.wait()
        return self._memory.captured(enqueue)
