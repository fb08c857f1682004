"""NVML as `nvidia-ml-py` binds it: the functions' own names and errors, over devices that a test
writes down. `tests/runtimes/test_nvml.py` holds the names against the real library where it is
installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

GIB = 1 << 30


class NVMLError(Exception):
    def __init__(self, value: int = 999) -> None:
        super().__init__(value)
        self.value = value


class NVMLError_NotSupported(NVMLError):
    pass


class NVMLError_NotFound(NVMLError):
    pass


class NVMLError_NoPermission(NVMLError):
    pass


class NVMLError_FunctionNotFound(NVMLError):
    pass


class NVMLError_GpuIsLost(NVMLError):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


@dataclass(eq=False)
class FakeDevice:
    """A GPU or a slice. `processes`: bytes by pid, None where the driver does not say; `hides`:
    raises instead. `slices`: None: it cannot be cut; of a cut GPU by place, None where there is
    none."""

    uuid: str
    total: int = 80 * GIB
    used: int = 0
    name: str = "NVIDIA H100 80GB HBM3"
    processes: dict[int, int | None] = field(default_factory=dict)
    hides: type[NVMLError] | None = None
    slices: list[FakeDevice | None] | None = None
    cut: bool = False


class FakeNvml:
    """`fails`: raised by every call after `nvmlInit`, as when the driver is gone. `on_read` is
    called before memory is told."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_NotFound = NVMLError_NotFound
    NVMLError_NoPermission = NVMLError_NoPermission
    NVMLError_GpuIsLost = NVMLError_GpuIsLost
    NVMLError_FunctionNotFound = NVMLError_FunctionNotFound
    NVMLError_LibraryNotFound = NVMLError_LibraryNotFound
    NVML_DEVICE_MIG_DISABLE, NVML_DEVICE_MIG_ENABLE = 0, 1

    def __init__(self, *gpus: FakeDevice, driver: bool = True) -> None:
        self.gpus = gpus
        self.driver = driver
        self.fails: type[NVMLError] | None = None
        self.on_read: Callable[[], None] = lambda: None
        self.opened = 0  # times, less those that it was shut

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError_LibraryNotFound(12)
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self._check()
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._check()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeDevice:
        self._check()
        if index >= len(self.gpus):
            raise NVMLError_NotFound(6)
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeDevice:
        self._check()
        slices = [each for gpu in self.gpus for each in gpu.slices or () if each is not None]
        for device in (*self.gpus, *slices):
            if device.uuid == uuid:
                return device
        raise NVMLError_NotFound(6)

    def nvmlDeviceGetName(self, device: FakeDevice) -> str:
        self._check()
        return device.name

    def nvmlDeviceGetMigMode(self, device: FakeDevice) -> list[int]:
        self._check()
        if device.slices is None:
            raise NVMLError_NotSupported(3)
        return [int(device.cut), int(device.cut)]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: FakeDevice) -> int:
        self._check()
        return len(device.slices or ())

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: FakeDevice, index: int) -> FakeDevice:
        self._check()
        found = (device.slices or [])[index]
        if found is None:
            raise NVMLError_NotFound(6)
        return found

    def nvmlDeviceGetMemoryInfo(self, device: FakeDevice) -> SimpleNamespace:
        self.on_read()
        self._check()
        free = device.total - device.used
        return SimpleNamespace(total=device.total, used=device.used, free=free)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, device: FakeDevice) -> list[SimpleNamespace]:
        self._check()
        if device.hides is not None:
            raise device.hides(3)
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in device.processes.items()
        ]

    def _check(self) -> None:
        if self.fails is not None:
            raise self.fails(15)
