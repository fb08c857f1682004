"""How much of its GPU a model takes, length by length, and what the command prints of it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from deployments import cli
from deployments.tools.profile.device_peaks import BatchMemory, peaks
from runtimes.errors import LoadError, OutOfMemory
from runtimes.synthetic.runtime import SyntheticRuntime
from runtimes.types import Batch, DeviceMemory, Limits, Result, RuntimeSettings
from tests.fake_nvml import GIB, FakeDevice, FakeNvml, NVMLError_GpuIsLost, NVMLError_NotSupported

MIB = 1 << 20
SETTINGS = RuntimeSettings(
    "m", "synthetic", None, Path("unused"), edges=(8, 16, 32), max_size=8, max_tokens=128
)


@pytest.fixture
def gpu() -> FakeDevice:
    return FakeDevice("GPU-0", total=10 * GIB, used=GIB)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, gpu: FakeDevice) -> FakeNvml:
    found = FakeNvml(gpu)
    monkeypatch.setattr("runtimes.nvml._binding", lambda: found)
    return found


class OnGpu(SyntheticRuntime):
    """Takes a MiB for each token of its largest batch so far, and half of it more while it runs;
    has memory for `tokens`."""

    gpu: FakeDevice
    tokens = 10**9

    def limits(self) -> Limits:
        return replace(super().limits(), device="cuda:0")

    def run(self, batch: Batch) -> Result:
        tokens = batch.rows * int(batch.lengths.max())
        if tokens > self.tokens:
            raise OutOfMemory("CUDA out of memory")
        taken = max(self.gpu.processes.get(os.getpid()) or 0, tokens * MIB)
        self.gpu.processes[os.getpid()], self.gpu.used = taken, GIB + taken
        return super().run(batch)


def on(gpu: FakeDevice, tokens: int = 10**9) -> OnGpu:
    made = OnGpu(SETTINGS)
    made.load()
    made.gpu, made.tokens = gpu, tokens
    return made


def taken(mib: int) -> DeviceMemory:
    return DeviceMemory(mib * MIB, GIB + mib * MIB, 10 * GIB)


def test_the_largest_batch_of_each_length_counts(gpu: FakeDevice, library: FakeNvml) -> None:
    assert peaks(on(gpu), SETTINGS, 0) == (
        BatchMemory(8, 8, taken(64)), BatchMemory(8, 16, taken(128)), BatchMemory(4, 32, taken(128))
    )  # fmt: skip
    assert library.opened == 0


def test_what_does_not_fit_is_said(gpu: FakeDevice, library: FakeNvml) -> None:
    found = peaks(on(gpu, tokens=64), SETTINGS, 0)
    assert found == (
        BatchMemory(8, 8, taken(64)), BatchMemory(8, 16, None), BatchMemory(4, 32, None)
    )  # fmt: skip


def test_a_row_that_does_not_fit_is_an_error(gpu: FakeDevice, library: FakeNvml) -> None:
    alone = replace(SETTINGS, max_size=1)
    with pytest.raises(LoadError, match="does not run 1 rows of 16"):
        peaks(on(gpu, tokens=8), alone, 0)


def test_without_a_gpu_or_its_driver_there_is_nothing(gpu: FakeDevice, library: FakeNvml) -> None:
    plain = SyntheticRuntime(SETTINGS)
    plain.load()
    assert peaks(plain, SETTINGS, 0) == ()
    made = on(gpu)
    library.on_read = lambda: setattr(library, "fails", NVMLError_GpuIsLost)
    assert peaks(made, SETTINGS, 0) == ()


@pytest.mark.parametrize("hidden", [False, True])
def test_the_command_prints_it_and_tells_it_as_json(
    gpu: FakeDevice,
    library: FakeNvml,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hidden: bool,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(OnGpu, "gpu", gpu, raising=False)
    monkeypatch.setattr("runtimes.synthetic.runtime.SyntheticRuntime", OnGpu)
    gpu.hides = NVMLError_NotSupported if hidden else None
    file = tmp_path / "settings.yaml"
    file.write_text(
        "models:\n  m:\n    runtime: synthetic\n    lengths: {max: 32, buckets: [8, 32]}\n"
        "    batch: {max_size: 8, max_tokens: 128}\n    options: {base_ms: 1}\n"
    )
    words = ["profile", str(file), "--seconds", "1", "--dry-run"]
    page = CliRunner().invoke(cli.main, words)
    assert page.exit_code == 0, page.output
    assert "Memory of the GPU, MiB, at the largest batch of each length" in page.stdout
    cells = [line.replace(" ", "").split("|")[1:-1] for line in page.stdout.splitlines()]
    assert ["32", "4", "hidden" if hidden else "128", "1,152", "10,240"] in cells
    told = json.loads(CliRunner().invoke(cli.main, [*words, "--json"]).stdout)
    last = told["device_memory_bytes"][-1]
    assert last["memory"]["own"] == (None if hidden else 128 * MIB)
    assert (last["rows"], last["length"], last["memory"]["total"]) == (4, 32, 10 * GIB)
