"""What ONNX Runtime is told: providers in order, TensorRT's profiles, arenas, what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtimes import catalog, cuda
from runtimes.cuda import VisibleGpu
from runtimes.errors import LoadError, MissingBackend
from runtimes.onnx import session
from runtimes.onnx.session import (
    ONNXRuntimeOptions,
    profile_options,
    providers,
    run_options,
    session_options,
)
from runtimes.onnxruntime import runtime as onnxruntime
from runtimes.options import CPU, Device
from runtimes.source import inspect
from runtimes.types import RuntimeSettings, TensorSpec
from runtimes.warmup import OptimizationProfile, SizeRange

sys.path.append(str(Path(__file__).parents[1] / "conformance"))

from tiny_models import bert_folder, recorded_rows

GPU = Device("cuda", 1)
IDS = TensorSpec("ids", "INT64", (-1, -1))
IMAGE = TensorSpec("x", "FP32", (-1, 3, -1))
PROFILE = OptimizationProfile(SizeRange(1, 8, 8), SizeRange(1, 16, 64))
OF_IDS = profile_options((IDS,), 1, PROFILE)


def named(chosen: ONNXRuntimeOptions, place: Device, profile: Any = OF_IDS) -> dict[str, Any]:
    return dict(providers(chosen, place, Path("/engines"), profile))


def test_processors_come_alone_or_last():
    assert list(named(ONNXRuntimeOptions(), CPU)) == ["CPUExecutionProvider"]
    found = named(ONNXRuntimeOptions(tensorrt_engines=True), GPU)
    assert list(found) == [
        "TensorrtExecutionProvider",
        "CUDAExecutionProvider",
        "CPUExecutionProvider",
    ]


def test_gpu_is_told_its_number_and_its_memory():
    chosen = ONNXRuntimeOptions(gpu_memory_mib=512, arena_growth="exact")
    cuda = named(chosen, GPU)["CUDAExecutionProvider"]
    assert cuda["device_id"] == 1
    assert cuda["gpu_mem_limit"] == 512 * 2**20
    assert cuda["arena_extend_strategy"] == "kSameAsRequested"
    assert "gpu_mem_limit" not in named(ONNXRuntimeOptions(), GPU)["CUDAExecutionProvider"]


def test_tensorrt_builds_for_the_least_usual_and_most_shapes_and_keeps_them():
    found = named(ONNXRuntimeOptions(tensorrt_engines=True), GPU)["TensorrtExecutionProvider"]
    assert found["trt_profile_min_shapes"] == "ids:1x1"
    assert found["trt_profile_opt_shapes"] == "ids:8x16"
    assert found["trt_profile_max_shapes"] == "ids:8x64"
    assert found["trt_engine_cache_path"] == found["trt_timing_cache_path"] == "/engines"
    assert "trt_fp16_enable" not in found  # types are the graph's


def test_shapes_that_nobody_knows_are_left_to_tensorrt():
    profile = profile_options((IDS, IMAGE), 1, PROFILE)
    found = named(ONNXRuntimeOptions(tensorrt_engines=True), GPU, profile)
    assert not any("profile" in name for name in found["TensorrtExecutionProvider"])


def test_arena_is_kept_shrunk_or_off():
    library = pytest.importorskip("onnxruntime", reason="pip install 'headrace[onnxruntime]'")
    kept, shrunk, off = (ONNXRuntimeOptions(arena=arena) for arena in ("kept", "shrunk", "off"))
    assert run_options(library, kept, CPU) is None
    asked = "memory.enable_memory_arena_shrinkage"
    assert run_options(library, shrunk, CPU).get_run_config_entry(asked) == "cpu:0"
    assert run_options(library, shrunk, GPU).get_run_config_entry(asked) == "cpu:0;gpu:1"
    assert session_options(library, kept, 1, True).enable_cpu_mem_arena
    assert not session_options(library, off, 1, True).enable_cpu_mem_arena


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"device": "rocm"}, "cpu, cuda, cuda:N or auto"),
        ({"tensorrt_engines": True, "device": "cpu"}, "which option 'device' cpu has not"),
        ({"arena": "big"}, "one of kept, shrunk, off"),
        ({"gpu_memory_mib": 0}, "1 or more"),
        ({"gpu_memory_mib": 512, "device": "cpu"}, "which option 'device' cpu has not"),
        ({"gpu_memory_mib": 512, "tensorrt_engines": True}, "leave one of them out"),
        ({"gpu_memory_mb": 512}, "did you mean 'gpu_memory_mib'"),
        ({"inter_op_threads": -1}, "0 or more"),
        ({"layout": "HWC"}, "one of NCHW, NHWC"),
        ({"pad_multiple": 0}, "1 or more"),
    ],
)
def test_wrong_options_are_told_what_is_right(chosen, message):
    with pytest.raises(LoadError, match=message):
        catalog.check("onnxruntime", chosen, "fp32")


H100 = VisibleGpu("G", "9.0", "1", memory_bytes=16 << 30)


def place(
    able: list[str], seen: int, monkeypatch: Any, gpu: VisibleGpu = H100, **fields: Any
) -> Device:
    monkeypatch.setattr(cuda, "gpus", lambda: (gpu,) * seen)
    monkeypatch.setattr(cuda, "_bindings", SimpleNamespace)
    settings = RuntimeSettings("m", "onnxruntime", None, Path("unused"), **fields)
    library = SimpleNamespace(get_available_providers=lambda: able)
    return onnxruntime.ONNXRuntimeRuntime(settings)._place(library)


WITH_CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]


def test_auto_takes_a_gpu_only_where_library_and_driver_have_one(monkeypatch):
    assert place(WITH_CUDA, 1, monkeypatch).is_cuda
    assert not place(WITH_CUDA, 0, monkeypatch).is_cuda
    assert not place(WITH_CUDA[1:], 1, monkeypatch).is_cuda


def test_more_memory_than_the_gpu_has_is_an_error_that_says_what_it_has(monkeypatch):
    assert place(WITH_CUDA, 1, monkeypatch, options={"gpu_memory_mib": 16_384}).is_cuda
    with pytest.raises(LoadError, match="'gpu_memory_mib' is 16385, but cuda:0 has 16384 MiB"):
        place(WITH_CUDA, 1, monkeypatch, options={"gpu_memory_mib": 16_385})
    assert not place(WITH_CUDA, 0, monkeypatch, options={"gpu_memory_mib": 16_385}).is_cuda


def test_gpu_that_the_build_cannot_use_is_an_error_that_says_so(monkeypatch):
    with pytest.raises(MissingBackend, match="onnxruntime sees no CUDA GPU"):
        place(WITH_CUDA[1:], 1, monkeypatch, options={"device": "cuda"})


def test_build_for_gpus_without_the_package_that_sees_them_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    library = SimpleNamespace(get_available_providers=lambda: WITH_CUDA)
    settings = RuntimeSettings("m", "onnxruntime", None, Path("unused"))
    with pytest.raises(MissingBackend, match="cuda-python, which is not installed"):
        onnxruntime.ONNXRuntimeRuntime(settings)._place(library)


def test_tensorrt_without_its_provider_is_an_error_that_says_so(monkeypatch):
    with pytest.raises(MissingBackend, match="onnxruntime sees no TensorRT"):
        place(WITH_CUDA, 1, monkeypatch, options={"tensorrt_engines": True})


def test_half_precision_is_for_gpus(monkeypatch):
    assert place(WITH_CUDA, 1, monkeypatch, precision="fp16").is_cuda
    with pytest.raises(LoadError, match="onnxruntime has no fp16 on cpu"):
        place(WITH_CUDA, 0, monkeypatch, precision="fp16")


WITH_TENSORRT = ["TensorrtExecutionProvider", *WITH_CUDA]
ENGINES = {"device": "cuda", "tensorrt_engines": True, "calibration": "recorded"}


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_eight_bits_on_a_gpu_are_tensorrts(monkeypatch, precision):
    assert place(WITH_TENSORRT, 1, monkeypatch, precision=precision, options=ENGINES).is_cuda
    with pytest.raises(LoadError, match=f"computes {precision} on a GPU with TensorRT alone"):
        place(WITH_CUDA, 1, monkeypatch, precision=precision)


def test_eight_bits_on_processors_are_int8(monkeypatch):
    assert not place(WITH_CUDA, 0, monkeypatch, precision="int8").is_cuda
    with pytest.raises(LoadError, match="computes fp8 on a GPU with TensorRT alone"):
        place(WITH_CUDA, 0, monkeypatch, precision="fp8")


def test_card_without_fp8_is_refused_by_its_capability(monkeypatch):
    a10 = VisibleGpu("A10", "8.6", "1")
    with pytest.raises(LoadError, match="A10 has no fp8"):
        place(WITH_TENSORRT, 1, monkeypatch, a10, precision="fp8", options=ENGINES)


@pytest.mark.parametrize(
    ("options", "precision", "wrong"),
    [
        ({"device": "cuda:1", "calibration": "x"}, "int8", "set option tensorrt_engines to true"),
        ({"calibration": "x"}, "fp8", "set option tensorrt_engines to true"),
        ({"tensorrt_engines": True}, "fp8", "precision fp8 needs the option calibration"),
        ({"calibration": "x"}, "int8", None),
        (ENGINES, "int8", None),
        (ENGINES, "fp8", None),
    ],
)
def test_settings_alone_show_whether_eight_bits_can_be(options, precision, wrong):
    found = catalog.calibration_complaint("onnxruntime", options, precision)
    assert wrong in found if wrong else found is None


def test_tensorrt_gets_a_graph_of_standard_operators_with_the_pairs_in_it(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime", reason="pip install 'headrace[onnxruntime]'")
    source = bert_folder(tmp_path / "bert")
    options = ENGINES | {"calibration": str(recorded_rows(tmp_path / "recorded"))}
    chosen = RuntimeSettings(
        "m", "onnxruntime", source, tmp_path / "cache", task="embed", precision="int8",
        options=options, edges=(8, 64),
    )  # fmt: skip
    runtime = onnxruntime.ONNXRuntimeRuntime(chosen)
    runtime._stage(inspect(source, tmp_path / "cache"), GPU)(tmp_path)
    graph = onnx.load(tmp_path / "model.onnx", load_external_data=False).graph
    assert {node.domain for node in graph.node} == {""}
    assert sum(node.op_type == "QuantizeLinear" for node in graph.node) == 8  # four a layer


class WithoutTensorRT:
    """A build that has the provider, where its libraries are missing: it goes on without."""

    def InferenceSession(
        self, file: str, options: object, providers: list[object], disabled_optimizers: list[str]
    ) -> object:
        return SimpleNamespace(get_providers=lambda: ["CUDAExecutionProvider"])


def test_provider_that_does_not_start_is_a_missing_backend(monkeypatch):
    monkeypatch.setattr(session, "library", WithoutTensorRT)
    wanted = [("TensorrtExecutionProvider", {}), ("CUDAExecutionProvider", {})]
    with pytest.raises(MissingBackend, match="could not start TensorrtExecutionProvider, see its"):
        session.opened(Path("model.onnx"), None, wanted)


def test_libraries_of_cuda_are_loaded_where_the_library_can():
    loaded = []
    session.preload(SimpleNamespace(preload_dlls=lambda: loaded.append("cuda")))
    session.preload(SimpleNamespace())  # before ONNX Runtime 1.21
    assert loaded == ["cuda"]


def test_what_preloading_prints_of_missing_libraries_is_not_the_servers(capsys):
    session.preload(SimpleNamespace(preload_dlls=lambda: print("Failed to load libcudnn.so.9")))
    assert capsys.readouterr().out == ""
