"""Which GPUs does this process see, and under which driver? Asked of NVIDIA's driver itself.

Through `libcuda`, which is there wherever the driver is, so that no backend's library is needed and
`CUDA_VISIBLE_DEVICES` counts. Code that was compiled for a GPU is keyed by what stands here.

No context is made and no memory taken. Source: the CUDA driver API (`cuInit`, `cuDeviceGet…`).
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIBRARY = "libcuda.so.1"
VERSION = Path("/proc/driver/nvidia/version")
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class Gpu:
    """`capability`: of its arithmetic, such as "9.0"; `driver`: such as "550.54.15"."""

    name: str
    capability: str
    driver: str

    def __str__(self) -> str:
        return f"{self.name} ({self.capability}, driver {self.driver})"


def gpus(library: Any = None, version: Path = VERSION) -> tuple[Gpu, ...]:
    """In the order of their numbers; none where there is no driver or no GPU."""
    driver = library or _library()
    if driver is None or driver.cuInit(0) != 0:
        return ()
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    release = _release(driver, version)
    return tuple(_gpu(driver, index, release) for index in range(count.value))


def _gpu(driver: Any, index: int, release: str) -> Gpu:
    device, name = ctypes.c_int(), ctypes.create_string_buffer(NAME_BYTES)
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, NAME_BYTES, device)
    parts = [ctypes.c_int(), ctypes.c_int()]
    for part, attribute in zip(parts, (MAJOR, MINOR), strict=True):
        driver.cuDeviceGetAttribute(ctypes.byref(part), attribute, device)
    return Gpu(name.value.decode(), ".".join(str(part.value) for part in parts), release)


def _release(driver: Any, version: Path) -> str:
    """The driver's own number; where the system hides it, the CUDA version that it speaks."""
    try:
        found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", version.read_text().splitlines()[0])
    except (OSError, IndexError):
        found = None
    if found:
        return found.group(1)
    spoken = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(spoken))
    return f"CUDA {spoken.value // 1000}.{spoken.value % 1000 // 10}"


def _library() -> Any:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None
