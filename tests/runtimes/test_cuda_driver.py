"""What the driver says of its GPUs, with a driver that stands in for NVIDIA's."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from runtimes.cuda.driver import MAJOR, Gpu, gpus

NVRM = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"


class Driver:
    """Writes through its callers' pointers, as the real one does."""

    def __init__(self, names: tuple[str, ...], fails: bool = False) -> None:
        self._names, self._fails = names, fails

    def cuInit(self, flags: int) -> int:
        return 100 if self._fails else 0

    def cuDeviceGetCount(self, count: Any) -> int:
        return self._write(count, len(self._names))

    def cuDeviceGet(self, device: Any, index: int) -> int:
        return self._write(device, index)

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        name.value = self._names[device.value].encode()
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        return self._write(value, 9 if attribute == MAJOR else 0)

    def cuDriverGetVersion(self, value: Any) -> int:
        return self._write(value, 12040)

    @staticmethod
    def _write(pointer: Any, value: int) -> int:
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = value
        return 0


def test_gpus_come_with_name_capability_and_driver(tmp_path):
    version = tmp_path / "version"
    version.write_text(NVRM)
    found = gpus(Driver(("NVIDIA H100", "NVIDIA H200")), version)
    assert found == (Gpu("NVIDIA H100", "9.0", "550.54.15"), Gpu("NVIDIA H200", "9.0", "550.54.15"))


def test_hidden_release_becomes_the_cuda_version(tmp_path):
    assert gpus(Driver(("G",)), tmp_path / "absent")[0].driver == "CUDA 12.4"


def test_driver_that_does_not_start_has_no_gpus():
    assert gpus(Driver(("G",), fails=True), Path("absent")) == ()


def test_no_gpu_is_none():
    assert gpus(Driver(()), Path("absent")) == ()
