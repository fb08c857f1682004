"""What the driver says of its GPUs, with bindings that stand in for NVIDIA's."""

from __future__ import annotations

import sys
from enum import IntEnum
from pathlib import Path

import pytest

from runtimes import cuda
from runtimes.cuda import VisibleGpu, gpus
from runtimes.errors import MissingBackend

NVRM = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100


class Attribute(IntEnum):
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76


class Driver:
    """Answers as `cuda.bindings.driver` does: the status, then the value."""

    CUresult = Status
    CUdevice_attribute = Attribute

    def __init__(self, names: tuple[str, ...], fails: bool = False) -> None:
        self._names, self._fails = names, fails

    def cuInit(self, flags: int) -> tuple[Status]:
        return (Status.CUDA_ERROR_NO_DEVICE if self._fails else Status.CUDA_SUCCESS,)

    def cuDeviceGetCount(self) -> tuple[Status, int]:
        return Status.CUDA_SUCCESS, len(self._names)

    def cuDeviceGet(self, index: int) -> tuple[Status, int]:
        return Status.CUDA_SUCCESS, index

    def cuDeviceGetName(self, size: int, device: int) -> tuple[Status, bytes]:
        return Status.CUDA_SUCCESS, self._names[device].encode().ljust(size, b"\0")

    def cuDeviceGetAttribute(self, attribute: Attribute, device: int) -> tuple[Status, int]:
        major = attribute is Attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        return Status.CUDA_SUCCESS, 9 if major else 0

    def cuDeviceTotalMem(self, device: int) -> tuple[Status, int]:
        return Status.CUDA_SUCCESS, (device + 1) << 30

    def cuDriverGetVersion(self) -> tuple[Status, int]:
        return Status.CUDA_SUCCESS, 12040


class WithoutLibrary(Driver):
    def cuInit(self, flags: int) -> tuple[Status]:
        raise RuntimeError("Failed to dlopen libcuda.so.1")


def test_gpus_come_with_name_capability_and_driver(tmp_path):
    version = tmp_path / "version"
    version.write_text(NVRM)
    found = gpus(Driver(("NVIDIA H100", "NVIDIA H200")), version)
    assert found == (
        VisibleGpu("NVIDIA H100", "9.0", "550.54.15", 1 << 30),
        VisibleGpu("NVIDIA H200", "9.0", "550.54.15", 2 << 30),
    )


def test_hidden_release_becomes_the_cuda_version(tmp_path):
    assert gpus(Driver(("G",)), tmp_path / "absent")[0].driver == "CUDA 12.4"


def test_driver_that_does_not_start_has_no_gpus():
    assert gpus(Driver(("G",), fails=True), Path("absent")) == ()


def test_machine_without_the_drivers_library_has_no_gpus():
    assert gpus(WithoutLibrary(("G",)), Path("absent")) == ()


def test_no_gpu_is_none():
    assert gpus(Driver(()), Path("absent")) == ()


def test_missing_package_sees_no_gpus_and_is_named_where_it_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    assert gpus() == ()
    with pytest.raises(MissingBackend, match=r"pip install 'headrace\[onnxruntime-gpu\]'"):
        cuda.require("onnxruntime-gpu")
