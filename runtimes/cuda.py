"""NVIDIA's own Python bindings: the GPUs that this process sees, and the memory of one.

`gpus` asks the driver, so that no backend's library is needed and `CUDA_VISIBLE_DEVICES` counts. No
context is made and no memory taken. Code that was compiled for a GPU is keyed by what stands here.

`CudaMemory` has the few calls that an engine of TensorRT needs: memory on the device, pinned memory
of the host seen as numpy arrays, copies on one stream, and graphs captured from it. A device that
fails is lost to this process, `Unhealthy`.

Memory is unverified here: see docs/runtimes.md. Source: the CUDA driver and runtime APIs.
"""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runtimes.errors import LoadError, MissingBackend, OutOfMemory, Unhealthy, library

VERSION = Path("/proc/driver/nvidia/version")
NAME_BYTES = 256
# Compute capability from which on tensor cores have the format.
NEEDED_CAPABILITY = {"bf16": (8, 0), "fp8": (8, 9)}


@dataclass(frozen=True, slots=True)
class VisibleGpu:
    """`capability`: of its arithmetic, such as "9.0"; `driver`: such as "550.54.15";
    `memory_bytes`: in all, 0 where it is not known."""

    name: str
    capability: str
    driver: str
    memory_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.name} ({self.capability}, driver {self.driver})"


def gpus(bindings: Any = None, version: Path = VERSION) -> tuple[VisibleGpu, ...]:
    """In the order of their numbers; none where there is no package, no driver or no GPU."""
    driver = bindings or _bindings()
    if driver is None:
        return ()
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError:  # the driver's library is not on this machine
        return ()
    if status != driver.CUresult.CUDA_SUCCESS:
        return ()
    status, count = driver.cuDeviceGetCount()
    if status != driver.CUresult.CUDA_SUCCESS:
        return ()
    release = _release(driver, version)
    return tuple(_gpu(driver, index, release) for index in range(count))


def check_precision(gpu: VisibleGpu, precision: str) -> None:
    """Raises `LoadError` where the GPU's arithmetic lacks the precision."""
    needed = NEEDED_CAPABILITY.get(precision, (0, 0))
    if tuple(map(int, gpu.capability.split("."))) < needed:
        others = "fp16" if precision == "bf16" else "int8 or fp16"
        raise LoadError(
            f"{gpu.name} has no {precision}: its compute capability is {gpu.capability}, "
            f"{precision} needs {needed[0]}.{needed[1]} or more; set precision to {others}"
        )


def require(runtime: str) -> None:
    """Raises `MissingBackend` where the package is missing without which no GPU is seen."""
    if _bindings() is None:
        raise MissingBackend(
            f"{runtime} sees GPUs through cuda-python, which is not installed: pip install "
            f"'headrace[{runtime}]'"
        )


def _gpu(driver: Any, index: int, release: str) -> VisibleGpu:
    device = _value(driver, driver.cuDeviceGet(index))
    name = _value(driver, driver.cuDeviceGetName(NAME_BYTES, device))
    attributes, prefix = driver.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY"
    parts = [
        _value(driver, driver.cuDeviceGetAttribute(getattr(attributes, f"{prefix}_{part}"), device))
        for part in ("MAJOR", "MINOR")
    ]
    memory_bytes = int(_value(driver, driver.cuDeviceTotalMem(device)))
    named = name.split(b"\0")[0].decode()
    return VisibleGpu(named, ".".join(map(str, parts)), release, memory_bytes)


def _release(driver: Any, version: Path) -> str:
    """The driver's own number; where the system hides it, the CUDA version that it speaks."""
    try:
        found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", version.read_text().splitlines()[0])
    except (OSError, IndexError):
        found = None
    if found:
        return found.group(1)
    spoken = _value(driver, driver.cuDriverGetVersion())
    return f"CUDA {spoken // 1000}.{spoken % 1000 // 10}"


def _value(driver: Any, answer: tuple[Any, Any]) -> Any:
    status, value = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        raise MissingBackend(f"NVIDIA's driver does not describe its GPUs: {status}")
    return value


def _bindings() -> Any:
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError:
        return None


Array = np.ndarray[Any, Any]


class CudaMemory:
    """One GPU and one stream on it. `enter`: the calling thread works on that GPU. Addresses are
    whole numbers; `host` gives bytes that `copy_in` and `copy_out` may read and write until
    `close`. `captured` runs `enqueue`, which puts work on the stream, and gives what replays that
    work."""

    def __init__(self, index: int) -> None:
        self._cuda = library(
            "cuda.bindings.runtime", "the tensorrt runtime needs its packages", "headrace[tensorrt]"
        )
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
        """What the call gives beside its status. Raises `OutOfMemory` where memory is short."""
        status, *values = getattr(self._cuda, name)(*arguments)
        if status == self._cuda.cudaError_t.cudaSuccess:
            return values[0] if values else None
        if status == self._cuda.cudaError_t.cudaErrorMemoryAllocation:
            raise OutOfMemory(
                f"{name}: out of memory, the GPU has too little for the model's shapes"
            )
        raise Unhealthy(f"the GPU is lost: {name} says {status}")
