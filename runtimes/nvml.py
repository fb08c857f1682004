"""How much memory do the GPUs, or MIG slices, of this process have, and how much is taken?

NVIDIA's management library (NVML, by its own binding `nvidia-ml-py`) is asked, which makes no
context and takes no memory. CUDA counts what `CUDA_VISIBLE_DEVICES` lists: numbers, or UUIDs of
GPUs or slices. NVML numbers GPUs in the order of their buses, as CUDA does where all are alike or
`CUDA_DEVICE_ORDER` says so; else a number names nothing here. Of a GPU that is cut into slices,
CUDA takes the first slice that this process may use, and so do we.

Without the library, the driver or a GPU there is nothing to tell, which is no error. What a process
takes is hidden in most containers. Sources: NVML's API reference; CUDA's guide to environment
variables; NVIDIA's MIG user guide.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from runtimes.errors import MissingBackend
from runtimes.types import DeviceMemory

PCI_ORDER = "PCI_BUS_ID"


class GpuMemory:
    """Devices by their handles. `close` it once; any thread may call it."""

    def __init__(self, library: Any, handles: Sequence[Any]) -> None:
        self._library, self._handles = library, tuple(handles)

    def read(self, pids: Collection[int]) -> DeviceMemory:
        """Sums over the devices. `pids`: whose memory is `own`. Raises `MissingBackend` where the
        driver does not answer any more."""
        try:
            infos = [self._library.nvmlDeviceGetMemoryInfo(handle) for handle in self._handles]
        except self._library.NVMLError as error:
            raise MissingBackend(f"NVML tells no memory: {error}") from error
        taken = [self._taken(handle, pids) for handle in self._handles]
        known = [size for size in taken if size is not None]
        return DeviceMemory(
            sum(known) if len(known) == len(taken) else None,
            sum(int(info.used) for info in infos),
            sum(int(info.total) for info in infos),
        )

    def _taken(self, handle: Any, pids: Collection[int]) -> int | None:
        """None where the driver does not say, or numbers processes otherwise, as of a container's
        host."""
        try:
            # Without its version the binding raises no NVMLError where a driver is too old for it.
            running = self._library.nvmlDeviceGetComputeRunningProcesses_v3(handle)
        except (self._library.NVMLError, AttributeError):  # an older binding under that name
            return None
        sizes = [each.usedGpuMemory for each in running if each.pid in pids]
        return sum(sizes) if sizes and None not in sizes else None

    def close(self) -> None:
        with contextlib.suppress(self._library.NVMLError):  # the driver is gone
            self._library.nvmlShutdown()


def opened(
    visible: str | None, order: str = "", device: int | None = None, library: Any = None
) -> GpuMemory | None:
    """The devices that this process may use, or one of them: `device`, as CUDA counts. None where
    there is none. `visible`, `order`: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER."""
    library = library or _binding()
    if library is None:
        return None
    try:
        library.nvmlInit()
    except library.NVMLError:  # no driver, or none that answers
        return None
    try:
        names = _names(library, visible)
        chosen = names if device is None else names[device : device + 1]
        handles = [_handle(library, name, order) for name in chosen]
    except library.NVMLError:
        handles = []
    if not handles or None in handles:
        library.nvmlShutdown()
        return None
    return GpuMemory(library, handles)


def _binding() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def _names(library: Any, visible: str | None) -> list[str]:
    """In CUDA's order. What follows a name that is none is not seen."""
    if visible is None:
        return [str(index) for index in range(library.nvmlDeviceGetCount())]
    names: list[str] = []
    for name in (each.strip() for each in visible.split(",")):
        if not name.isdecimal() and not name.startswith(("GPU-", "MIG-")):
            break
        names.append(name)
    return names


def _handle(library: Any, name: str, order: str) -> Any:
    """None for a number that may mean another GPU to CUDA."""
    if name.startswith("MIG-"):
        return library.nvmlDeviceGetHandleByUUID(name)
    if name.startswith("GPU-"):
        return _whole_or_slice(library, library.nvmlDeviceGetHandleByUUID(name))
    if order != PCI_ORDER and len(set(_models(library))) > 1:
        return None
    return _whole_or_slice(library, library.nvmlDeviceGetHandleByIndex(int(name)))


def _models(library: Any) -> Iterator[str]:
    for index in range(library.nvmlDeviceGetCount()):
        yield library.nvmlDeviceGetName(library.nvmlDeviceGetHandleByIndex(index))


def _whole_or_slice(library: Any, gpu: Any) -> Any:
    """The GPU; where it is cut into slices the first of them, None if there is none to use."""
    try:
        cut, _ = library.nvmlDeviceGetMigMode(gpu)
    except library.NVMLError:  # a GPU that cannot be cut
        return gpu
    if cut != library.NVML_DEVICE_MIG_ENABLE:
        return gpu
    for place in range(library.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            return library.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
        except library.NVMLError:
            continue  # no slice there, or another container's
    return None
