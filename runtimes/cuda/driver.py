"""The GPUs that this process sees, and their driver, asked of NVIDIA's driver itself.

Through `cuda.bindings`, NVIDIA's own package, which every extra for GPUs brings, so that no
backend's library is needed and `CUDA_VISIBLE_DEVICES` counts. Code that was compiled for a GPU is
keyed by what stands here.

No context is made and no memory taken. Source: the CUDA driver API (`cuInit`, `cuDeviceGet…`).
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtimes.errors import MissingBackend

VERSION = Path("/proc/driver/nvidia/version")
NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class VisibleGpu:
    """`capability`: of its arithmetic, such as "9.0"; `driver`: such as "550.54.15"."""

    name: str
    capability: str
    driver: str

    def __str__(self) -> str:
        return f"{self.name} ({self.capability}, driver {self.driver})"


def gpus(bindings: Any = None, version: Path = VERSION) -> tuple[VisibleGpu, ...]:
    """In the order of their numbers; none where there is no package, no driver or no GPU."""
    driver = bindings or _bindings()
    if driver is None or not _starts(driver):
        return ()
    status, count = driver.cuDeviceGetCount()
    if status != driver.CUresult.CUDA_SUCCESS:
        return ()
    release = _release(driver, version)
    return tuple(_gpu(driver, index, release) for index in range(count))


def require(runtime: str) -> None:
    """Raises `MissingBackend` where the package is missing without which no GPU is seen."""
    if _bindings() is None:
        raise MissingBackend(
            f"{runtime} sees GPUs through cuda-python, which is not installed: pip install "
            f"'headrace[{runtime}]'"
        )


def _starts(driver: Any) -> bool:
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError:  # the driver's library is not on this machine
        return False
    return bool(status == driver.CUresult.CUDA_SUCCESS)


def _gpu(driver: Any, index: int, release: str) -> VisibleGpu:
    device = _value(driver, driver.cuDeviceGet(index))
    name = _value(driver, driver.cuDeviceGetName(NAME_BYTES, device))
    attributes, prefix = driver.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY"
    parts = [
        _value(driver, driver.cuDeviceGetAttribute(getattr(attributes, f"{prefix}_{part}"), device))
        for part in ("MAJOR", "MINOR")
    ]
    return VisibleGpu(name.split(b"\0")[0].decode(), ".".join(map(str, parts)), release)


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
