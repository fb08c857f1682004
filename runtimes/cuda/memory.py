"""A GPU's memory, one stream and captured graphs, without a tensor library.

The few calls that an engine of TensorRT needs, over NVIDIA's own Python bindings: memory on the
device, pinned memory of the host seen as numpy arrays, copies on one stream, and graphs captured
from it. Every call's status is checked; a device that fails is lost to this process, `Unhealthy`.

Unverified here: see docs/runtimes.md. Source: the CUDA runtime API and `cuda-python`.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from runtimes.errors import LoadError, MissingBackend, Unhealthy

Array = np.ndarray[Any, Any]


class DeviceMemory(Protocol):
    """One GPU and one stream on it. `enter`: the calling thread works on that GPU. Addresses are
    whole numbers; `host` gives bytes that `copy_in` and `copy_out` may read and write until
    `close`. `captured` runs `enqueue`, which puts work on the stream, and gives what replays that
    work."""

    stream: int

    def enter(self) -> None: ...
    def device(self, size: int) -> int: ...
    def host(self, size: int) -> Array: ...
    def copy_in(self, to: int, source: Array) -> None: ...
    def copy_out(self, to: Array, source: int) -> None: ...
    def wait(self) -> None: ...
    def captured(self, enqueue: Callable[[], None]) -> Callable[[], None]: ...
    def close(self) -> None: ...


class CudaMemory:
    """`DeviceMemory` by the CUDA runtime."""

    def __init__(self, index: int) -> None:
        self._cuda = _library()
        self._device: list[Any] = []
        self._host: list[Any] = []
        self._graphs: list[Any] = []
        self._index = index
        self.enter()
        self._stream = self._do("cudaStreamCreate")
        self.stream = int(self._stream)

    def enter(self) -> None:
        self._do("cudaSetDevice", self._index)

    def device(self, size: int) -> int:
        pointer = self._do("cudaMalloc", max(1, size))
        self._device.append(pointer)
        return int(pointer)

    def host(self, size: int) -> Array:
        pointer = self._do("cudaHostAlloc", max(1, size), self._cuda.cudaHostAllocDefault)
        self._host.append(pointer)
        return np.ctypeslib.as_array((ctypes.c_uint8 * max(1, size)).from_address(int(pointer)))

    def copy_in(self, to: int, source: Array) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._do("cudaMemcpyAsync", to, source.ctypes.data, source.nbytes, kind, self._stream)

    def copy_out(self, to: Array, source: int) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._do("cudaMemcpyAsync", to.ctypes.data, source, to.nbytes, kind, self._stream)

    def wait(self) -> None:
        self._do("cudaStreamSynchronize", self._stream)

    def captured(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._do("cudaStreamBeginCapture", self._stream, mode)
        try:
            enqueue()
        finally:
            graph = self._do("cudaStreamEndCapture", self._stream)
        ready = self._do("cudaGraphInstantiate", graph, 0)
        self._do("cudaGraphDestroy", graph)
        self._graphs.append(ready)
        return lambda: self._do("cudaGraphLaunch", ready, self._stream)

    def close(self) -> None:
        for name, held in (
            ("cudaGraphExecDestroy", self._graphs),
            ("cudaFree", self._device),
            ("cudaFreeHost", self._host),
        ):
            while held:
                self._do(name, held.pop())
        stream, self._stream = self._stream, None
        if stream is not None:
            self._do("cudaStreamDestroy", stream)

    def _do(self, name: str, *arguments: Any) -> Any:
        """What the call gives beside its status. Raises `LoadError` where memory is short."""
        status, *values = getattr(self._cuda, name)(*arguments)
        if status == self._cuda.cudaError_t.cudaSuccess:
            return values[0] if values else None
        if status == self._cuda.cudaError_t.cudaErrorMemoryAllocation:
            raise LoadError(f"{name}: the GPU's memory is too small for the model's shapes")
        raise Unhealthy(f"the GPU is lost: {name} says {status}")


def _library() -> Any:
    try:
        return importlib.import_module("cuda.bindings.runtime")
    except ImportError as error:
        raise MissingBackend(
            f"the tensorrt runtime needs its packages: pip install 'headrace[tensorrt]' ({error})"
        ) from error
