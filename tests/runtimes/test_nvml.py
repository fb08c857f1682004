"""Which devices are a process's, and how much of their memory is whose."""

from __future__ import annotations

import sys

import pytest

from runtimes import nvml
from runtimes.errors import MissingBackend
from runtimes.types import DeviceMemory
from tests.fake_nvml import (
    GIB,
    FakeDevice,
    FakeNvml,
    NVMLError,
    NVMLError_FunctionNotFound,
    NVMLError_GpuIsLost,
    NVMLError_NoPermission,
    NVMLError_NotSupported,
)

SMALL = FakeDevice("MIG-1", total=10 * GIB, used=2 * GIB, processes={7: GIB})
LARGE = FakeDevice("MIG-2", total=40 * GIB, used=4 * GIB)
CUT = FakeDevice("GPU-c", slices=[None, SMALL, LARGE], cut=True)
WHOLE = FakeDevice("GPU-w", used=3 * GIB, processes={7: GIB, 8: 2 * GIB}, slices=[], cut=False)
OLD = FakeDevice("GPU-o", total=16 * GIB, used=GIB, name="NVIDIA T4")


def read(library: FakeNvml, visible: str | None, pids=(7,), **how) -> DeviceMemory | None:
    gpu = nvml.opened(visible, library=library, **how)
    return None if gpu is None else gpu.read(pids)


def test_memory_is_this_processs_everybodys_and_all():
    assert read(FakeNvml(WHOLE), None) == DeviceMemory(GIB, 3 * GIB, 80 * GIB)


def test_memory_of_processes_it_started_is_its_own():
    assert read(FakeNvml(WHOLE), None, pids={7, 8}) == DeviceMemory(3 * GIB, 3 * GIB, 80 * GIB)


@pytest.mark.parametrize(
    ("visible", "total"),
    [
        ("0", 80), ("1", 10), ("GPU-w", 80), ("MIG-1", 10), ("MIG-2", 40),
        ("GPU-c", 10),  # of a cut GPU, CUDA takes the first slice
        ("1,0", 90), (" 0 , MIG-2", 120), ("0,-1,1", 80), ("0,x,1", 80),
    ],
)  # fmt: skip
def test_devices_are_those_that_cuda_sees(visible, total):
    assert read(FakeNvml(WHOLE, CUT), visible).total == total * GIB


@pytest.mark.parametrize(("device", "total"), [(0, 40), (1, 80)])
def test_one_device_is_counted_as_cuda_counts(device, total):
    assert read(FakeNvml(WHOLE, CUT), "MIG-2,0", device=device).total == total * GIB


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles", "9", "GPU-x", "MIG-x"])
def test_nothing_is_told_of_devices_that_are_not_there(visible):
    library = FakeNvml(WHOLE)
    assert read(library, visible) is None
    assert library.opened == 0


def test_number_beyond_those_seen_is_nothing():
    assert read(FakeNvml(WHOLE), "0", device=1) is None


def test_numbers_of_unlike_gpus_count_only_in_the_order_of_buses():
    library = FakeNvml(OLD, WHOLE)
    assert read(library, "0") is None
    assert read(library, "0", order="PCI_BUS_ID").total == 16 * GIB
    assert read(library, "GPU-o").total == 16 * GIB


def test_cut_gpu_without_a_slice_of_ours_is_nothing():
    assert read(FakeNvml(FakeDevice("GPU-c", slices=[None, None], cut=True)), "0") is None


@pytest.mark.parametrize(
    "hides", [NVMLError_NotSupported, NVMLError_NoPermission, NVMLError_FunctionNotFound]
)
def test_memory_of_a_process_may_be_hidden(hides):
    hidden = FakeDevice("GPU-h", used=GIB, hides=hides)
    assert read(FakeNvml(hidden), None) == DeviceMemory(None, GIB, 80 * GIB)


@pytest.mark.parametrize("processes", [{}, {4_000_123: GIB}, {7: None}])
def test_memory_of_a_process_that_is_not_listed_is_not_known(processes):
    strange = FakeDevice("GPU-s", used=GIB, processes=processes)
    assert read(FakeNvml(strange), None) == DeviceMemory(None, GIB, 80 * GIB)


def test_without_a_driver_there_is_nothing_to_tell():
    assert read(FakeNvml(WHOLE, driver=False), None) is None


def test_without_the_library_there_is_nothing_to_tell(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.opened(None) is None


def test_driver_that_is_gone_is_said_once_asked():
    library = FakeNvml(WHOLE)
    gpu = nvml.opened(None, library=library)
    library.fails = NVMLError_GpuIsLost
    with pytest.raises(MissingBackend, match="NVML tells no memory"):
        gpu.read((7,))
    gpu.close()


def test_library_is_shut_with_the_devices():
    library = FakeNvml(WHOLE)
    nvml.opened(None, library=library).close()
    assert library.opened == 0


def test_fake_has_the_librarys_names():
    real = pytest.importorskip("pynvml", reason="pip install nvidia-ml-py")
    names = {name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML"))}
    assert len(names) >= 16
    assert {name for name in names if not hasattr(real, name)} == set()
    for name in names:
        if isinstance(getattr(real, name), int):
            assert getattr(FakeNvml, name) == getattr(real, name)
    with pytest.raises(real.NVMLError_LibraryNotFound) as none_here:
        real.nvmlInit()
    assert isinstance(none_here.value, real.NVMLError)
    assert issubclass(FakeNvml.NVMLError_NotFound, NVMLError)
