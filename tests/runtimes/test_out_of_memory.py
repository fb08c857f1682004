"""Memory that is too small for a batch, as the real libraries say it: the batch's fault alone.

torch runs on the processors with an allocator that has less than is there; ONNX Runtime's arena is
its own, of a few MiB."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from deployments.contract.channel.frames import rows_of
from deployments.replica.device import run_bisected
from deployments.replica.device_memory import MemoryCap, gpus_of, read
from runtimes import warmup
from runtimes.cuda import CudaMemory
from runtimes.equal_shapes import EqualShapes
from runtimes.errors import LoadError, OutOfMemory, RunError, Unhealthy
from runtimes.graph.runtime import GraphRuntime
from runtimes.types import Batch, Limits, Ragged, RowShapes, RuntimeSettings, StageTimes, TensorSpec

WIDTH = 64
IDS = TensorSpec("ids", "INT64", (-1, -1))
LIMITS = Limits((IDS,), (), length_input="ids", max_length=16)


def ids_of(*lengths: int) -> Batch:
    data = np.repeat(np.arange(len(lengths), dtype=np.int64) % 40, lengths)
    shapes = tuple((length,) for length in lengths)
    return Batch(len(lengths), np.array(lengths), {"ids": Ragged("INT64", data, shapes)})


def test_batch_that_torch_cannot_allocate_is_answered_in_halves(tmp_path):
    torch = pytest.importorskip("torch", reason="pip install 'headrace[torch]'")
    from torch.utils._python_dispatch import TorchDispatchMode

    from runtimes.torch.runtime import TorchRuntime

    class Allocator(TorchDispatchMode):
        """Has `tokens` rows of the table's width for what one operation returns."""

        tokens = 64.0

        def __init__(self) -> None:
            super().__init__()
            self.made: list[Any] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            self.made += [weakref.ref(made)] if isinstance(made, torch.Tensor) else []
            if isinstance(made, torch.Tensor) and made.numel() > self.tokens * WIDTH:
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {made.nbytes} bytes."
                )
            return made

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(40, WIDTH)

        def forward(self, ids: Any) -> Any:
            return self.table(ids) * 2

    sizes = {"ids": {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=128)}}
    sample = (torch.ones(2, 3, dtype=torch.int64),)
    exported = torch.export.export(Net().eval(), sample, dynamic_shapes=sizes)
    torch.export.save(exported, tmp_path / "net.pt2")
    runtime = TorchRuntime(
        RuntimeSettings(
            "m", "torch", tmp_path / "net.pt2", tmp_path, threads=1, options={"device": "cpu"}
        )
    )
    runtime.load()
    lengths, cap = (16, 3, 16, 9, 128, 16, 16, 2), MemoryCap()
    with pytest.raises(OutOfMemory), Allocator() as allocator:
        runtime.run(ids_of(*lengths))
    assert allocator.made
    assert all(made() is None for made in allocator.made)  # though nobody has looked for cycles
    with Allocator():
        found = run_bisected(runtime, ids_of(*lengths), cap=cap)
        once = run_bisected(runtime, ids_of(*[16] * 8), cap=cap)
        again = run_bisected(runtime, ids_of(*[16] * 8), cap=cap)
    alone = [run_bisected(runtime, ids_of(*[16] * 8).picked([row])) for row in range(8)]
    assert [(e.row, e.out_of_memory) for e in found.errors] == [(4, True)]
    assert found.memory_faults == 4  # of 8, 4 and 2 rows, and of the long one alone
    assert once.memory_faults == 1
    (name,) = again.outputs
    assert (again.errors, again.memory_faults) == ((), 0)
    for row, one in zip(rows_of(again.outputs[name]), alone, strict=True):
        np.testing.assert_array_equal(row, rows_of(one.outputs[name])[0])
    runtime.health()
    Allocator.tokens = 0.5  # too few for a single token
    with Allocator():
        assert run_bisected(runtime, ids_of(2)).errors
        for _ in range(warmup.STARVED_CHECKS - 1):
            runtime.health()
        with pytest.raises(Unhealthy, match="out of memory"):
            runtime.health()
    assert not run_bisected(runtime, ids_of(2)).errors
    runtime.health()
    runtime.close()


def test_rows_of_shapes_without_memory_are_well_for_a_minute():
    class Starved:
        """Has no memory, and no shape but (2, 2)."""

        def limits(self) -> Limits:
            return Limits((TensorSpec("x", "FP32", (-1, -1, -1)),), ())

        def run(self, batch: Batch) -> Any:
            shapes = batch.inputs["x"].shapes
            raise OutOfMemory("none") if shapes == ((2, 2),) else RunError("broken")

        def load(self) -> None:
            pass

        def health(self) -> None:
            self.run(warmup.batch(self.limits(), 1, 1))

    wanted = RowShapes("x", ((4, (2, 2)),))
    settings = RuntimeSettings("m", "torch", None, Path("unused"), row_shapes=wanted)
    made = EqualShapes(Starved(), settings)  # type: ignore[arg-type]
    made.load()
    with pytest.raises(OutOfMemory):
        made.run(warmup.batch(made.limits(), 1, 4))
    for _ in range(warmup.STARVED_CHECKS - 1):
        made.health()
    with pytest.raises(Unhealthy, match="none"):
        made.health()


def test_batch_that_onnx_runtimes_arena_cannot_hold_is_the_batchs_fault(tmp_path):
    library = pytest.importorskip("onnxruntime", reason="pip install 'headrace[onnxruntime]'")
    onnx = pytest.importorskip("onnx", reason="pip install 'headrace[onnxruntime]'")
    from onnx import helper

    from runtimes.onnxruntime.runtime import FACTS, ONNXRuntimeEngine, Opening

    element = onnx.TensorProto.FLOAT
    weights = helper.make_tensor("w", element, [4, 4096], np.ones(4 * 4096, np.float32))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", element, ["n", 4])],
        [helper.make_tensor_value_info("y", element, ["n", 4096])], [weights],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    (tmp_path / FACTS).write_text(json.dumps({"id_bounds": {}, "max_length": None, "inputs": []}))
    kinds, memory = library.OrtAllocatorType, library.OrtMemType
    where = library.OrtMemoryInfo("Cpu", kinds.ORT_ARENA_ALLOCATOR, 0, memory.DEFAULT)
    library.create_and_register_allocator(where, library.OrtArenaCfg(8 << 20, -1, -1, -1))
    options = library.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.use_env_allocators", "1")
    opening = Opening(options, [("CPUExecutionProvider", {})], None, False)
    engine = ONNXRuntimeEngine(library, tmp_path, opening)

    def infer(rows: int) -> int:
        given = {"x": np.ones((rows, 4), np.float32)}
        return len(engine.infer(given, ["y"], StageTimes())[0])

    with pytest.raises(OutOfMemory, match=r"ONNX Runtime: .*smaller than requested bytes"):
        infer(100_000)
    assert infer(10) == 10
    with pytest.raises(RunError) as other:
        engine.infer({"x": np.ones((2, 3), np.float32)}, ["y"], StageTimes())
    assert not isinstance(other.value, OutOfMemory)


def tried(run: Callable[[Batch], object]) -> None:
    settings = RuntimeSettings("m", "torch", None, Path("unused"), edges=(8, 16), max_size=4)
    warmup.warm(settings, LIMITS, run, 30.0)


def no_memory_above(tokens: int) -> Callable[[Batch], object]:
    def run(batch: Batch) -> None:
        if batch.rows * int(batch.lengths.max()) > tokens:
            raise OutOfMemory("CUDA out of memory")

    return run


def test_warm_up_says_once_which_batches_have_no_memory(caplog):
    tried(no_memory_above(20))
    (line,) = caplog.records
    assert "no memory for 4 rows of 16: such batches will be halved" in line.getMessage()
    caplog.clear()
    tried(no_memory_above(64))
    assert not caplog.records


def test_row_that_has_no_memory_alone_is_an_error_at_the_start():
    with pytest.raises(LoadError, match=r"does not run 1 rows of 16.*out of memory"):
        tried(no_memory_above(15))


class Full(GraphRuntime):
    """Its device has lost all its memory to others."""

    def _open(self) -> Any:
        raise OutOfMemory("cudaMalloc: out of memory")


def test_model_that_does_not_fit_is_told_when_it_is_loaded():
    from runtimes.graph.options import GraphOptions

    full = Full(RuntimeSettings("m", "tensorrt", None, Path("unused")), GraphOptions())
    with pytest.raises(LoadError, match="cudaMalloc: out of memory"):
        full.load()


def test_device_without_memory_is_well_for_a_minute():
    """What took it may give it back; where this process has leaked it, a new one has it."""
    from runtimes.openvino.runtime import OpenVINOOptions

    made = Full(RuntimeSettings("m", "openvino", None, Path("unused")), OpenVINOOptions())
    raised: list[Exception] = [OutOfMemory("none"), RunError("broken")]

    def infer(*_: Any) -> Any:
        raise raised[0]

    from runtimes.graph.dense import Signature

    made._engine = SimpleNamespace(infer=infer)  # type: ignore[assignment]
    made._signature = Signature(LIMITS, {}, None)
    with pytest.raises(OutOfMemory):
        made.run(ids_of(4))
    for _ in range(warmup.STARVED_CHECKS - 1):
        made.health()
    with pytest.raises(Unhealthy, match=f"no memory in {warmup.STARVED_CHECKS} checks: none"):
        made.health()
    made._last.answered()
    with pytest.raises(OutOfMemory):
        made.run(ids_of(4))
    made.health()
    raised.pop(0)
    with pytest.raises(Unhealthy, match="even the smallest batch fails"):
        made.health()


def test_cuda_call_without_memory_is_no_lost_gpu():
    memory = CudaMemory.__new__(CudaMemory)
    codes = SimpleNamespace(cudaSuccess=0, cudaErrorMemoryAllocation=2)
    memory._cuda = SimpleNamespace(cudaError_t=codes, cudaMalloc=lambda size: (2, 0))
    memory._device = []
    with pytest.raises(OutOfMemory, match="cudaMalloc"):
        memory.device(1 << 40)


# ---- on a GPU -----------------------------------------------------------------------------------


@pytest.fixture
def on_gpu() -> Any:
    torch = pytest.importorskip("torch", reason="pip install 'headrace[torch]'")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA GPU (unverified here: docs/runtimes.md)")
    return torch


def test_nvml_and_torch_see_the_same_gpu(on_gpu):
    pytest.importorskip("pynvml", reason="pip install nvidia-ml-py")
    gpus = gpus_of("cuda:0", 1)
    assert gpus is not None
    held = on_gpu.empty(256 << 20, dtype=on_gpu.uint8, device="cuda:0")
    found, total = read(gpus), on_gpu.cuda.get_device_properties(0).total_memory
    assert found.total == pytest.approx(total, rel=0.05)
    assert found.used >= held.nbytes
    assert found.own is None or held.nbytes <= found.own <= found.used
    gpus.close()


def test_bound_on_a_gpus_memory_holds_and_is_given_back(on_gpu, tmp_path):
    from runtimes.torch.runtime import TorchRuntime

    class Wide(on_gpu.nn.Module):
        """Takes 4 MiB a token, twice."""

        def forward(self, ids: Any) -> Any:
            wide = ids[..., None].float().expand(*ids.shape, 1 << 20) + 1
            return (wide * 2).sum(-1)

    sizes = {"ids": {0: on_gpu.export.Dim("b", max=64), 1: on_gpu.export.Dim("l", max=64)}}
    sample = (on_gpu.ones(2, 3, dtype=on_gpu.int64),)
    exported = on_gpu.export.export(Wide().eval(), sample, dynamic_shapes=sizes)
    on_gpu.export.save(exported, tmp_path / "wide.pt2")
    settings = RuntimeSettings(
        "m", "torch", tmp_path / "wide.pt2", tmp_path, threads=1,
        options={"device": "cuda:0", "gpu_memory_mib": 1024},
    )  # fmt: skip
    runtime, cap = TorchRuntime(settings), MemoryCap()
    runtime.load()
    with pytest.raises(OutOfMemory):
        runtime.run(ids_of(*[32] * 8))
    found = run_bisected(runtime, ids_of(*[32] * 8), cap=cap)
    assert found.errors == ()
    assert found.memory_faults > 0
    runtime.close()
    assert on_gpu.cuda.memory_reserved(0) < 64 << 20
    assert on_gpu.empty(2 << 30, dtype=on_gpu.uint8, device="cuda:0").nbytes == 2 << 30
