"""ONNX Runtime: the backend's options, what its sessions are told of them, and the sessions.

Options become the library's session options and its list of execution providers, in the order of
preference: TensorRT, CUDA, the processors, which run what the ones before them cannot. The library
is handed in or imported on use, so that all of it can be tested where it sees no GPU.

`opened` refuses a provider that the library went on without; `plain` opens a graph as it is stored,
to look at its values; `optimise` stores what the library's optimisations make of a graph.
Source: ONNX Runtime's documentation of the CUDA and TensorRT execution providers, of memory arenas
and of thread management.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runtimes import errors, options
from runtimes.errors import LoadError, MissingBackend
from runtimes.graph.options import DeviceOptions
from runtimes.options import Device
from runtimes.types import TensorSpec
from runtimes.warmup import OptimizationProfile

ERRORS_ONLY = 3  # the log level: storing an optimised graph warns each time that it is hardware's
CPU, CUDA, TENSORRT = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "Tensorrt"))
GROWTH = {"exact": "kSameAsRequested", "doubling": "kNextPowerOfTwo"}
# On processors its kernel takes longer than the sum and the norm that it replaces: 8 to 10 % of
# MiniLM's time on one thread.
SLOWER = ("SkipLayerNormFusion",)
Provider = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ONNXRuntimeOptions(DeviceOptions):
    """tensorrt_engines: for what TensorRT can run, CUDA for the rest. io_binding: inputs and
    outputs are bound to memory instead of handed over. arena: memory that is kept between batches,
    given back after each, or taken each time; arena_growth: by what is asked or by doubling;
    gpu_memory_mib: the most a GPU's arena takes, None for all. execution: operators in turn, or
    independent ones at once on inter_op_threads. spinning: idle threads wait actively, which gains
    a little latency and takes processors from others."""

    tensorrt_engines: bool = False
    io_binding: bool = False
    arena: Literal["kept", "shrunk", "off"] = "kept"
    arena_growth: Literal["exact", "doubling"] = "doubling"
    gpu_memory_mib: int | None = None
    execution: Literal["sequential", "parallel"] = "sequential"
    inter_op_threads: int = 1
    spinning: bool = False

    def __post_init__(self) -> None:
        DeviceOptions.__post_init__(self)
        if self.tensorrt_engines and self.device == "cpu":
            raise ValueError("option 'tensorrt_engines' is true, which option 'device' cpu has not")
        if self.inter_op_threads < 0:
            raise ValueError(
                f"option 'inter_op_threads' is {self.inter_op_threads}, it must be 0 or more"
            )
        options.check_gpu_memory(self.gpu_memory_mib, self.device)
        if self.gpu_memory_mib is not None and self.tensorrt_engines:
            raise ValueError(
                "option 'gpu_memory_mib' bounds CUDA's arena, beside which option "
                "'tensorrt_engines' takes memory without a bound: leave one of them out"
            )

    def unfit(self, precision: str, place: str = "") -> str | None:
        """Its CUDA provider quantises but has no products of what it quantised: it would convert
        back and compute in floats, slower than in fp16. `place`: the device, where it is known."""
        on_gpu = (place or self.device).startswith("cuda")
        if self.tensorrt_engines or precision not in ("int8", "fp8"):
            return None
        if precision == "int8" and not on_gpu:
            return None
        return (
            f"onnxruntime computes {precision} on a GPU with TensorRT alone: set option "
            "tensorrt_engines to true, or precision to fp16"
        )


def profile_options(
    inputs: Sequence[TensorSpec], length_axis: int | None, profile: OptimizationProfile
) -> dict[str, str]:
    """The profile as options of the TensorRT provider, each "ids:1x16,mask:1x16"; none where the
    size of an axis is not known, which leaves the shapes to the provider."""
    shapes = {spec.name: profile.shapes(spec, length_axis) for spec in inputs}
    if any(-1 in shape for three in shapes.values() for shape in three):
        return {}
    return {
        f"trt_profile_{which}_shapes": ",".join(
            f"{name}:{'x'.join(map(str, three[at]))}" for name, three in shapes.items()
        )
        for at, which in enumerate(("min", "opt", "max"))
    }


def providers(
    chosen: ONNXRuntimeOptions,
    place: Device,
    engines: Path,
    profile: Mapping[str, str],
) -> list[Provider]:
    """The library's list. `engines`: the folder in which TensorRT keeps engines and timings.
    `profile`: see `profile_options`."""
    found: list[Provider] = [(CPU, {})]
    if place.is_cuda:
        found.insert(0, (CUDA, _cuda(chosen, place)))
    if place.is_cuda and chosen.tensorrt_engines:
        kept = {f"trt_{kind}_cache_path": str(engines) for kind in ("engine", "timing")}
        on = {f"trt_{kind}_cache_enable": True for kind in ("engine", "timing")}
        found.insert(0, (TENSORRT, {"device_id": place.index, **on, **kept, **profile}))
    return found


def session_options(library: Any, chosen: ONNXRuntimeOptions, threads: int, optimised: bool) -> Any:
    """`optimised`: the stored graph needs no further optimisation."""
    levels = library.GraphOptimizationLevel
    made = library.SessionOptions()
    made.log_severity_level = ERRORS_ONLY
    made.graph_optimization_level = levels.ORT_DISABLE_ALL if optimised else levels.ORT_ENABLE_ALL
    made.intra_op_num_threads = threads
    made.inter_op_num_threads = chosen.inter_op_threads
    modes = library.ExecutionMode
    parallel = chosen.execution == "parallel"
    made.execution_mode = modes.ORT_PARALLEL if parallel else modes.ORT_SEQUENTIAL
    made.enable_cpu_mem_arena = chosen.arena != "off"
    spinning = "1" if chosen.spinning else "0"
    made.add_session_config_entry("session.intra_op.allow_spinning", spinning)
    made.add_session_config_entry("session.inter_op.allow_spinning", spinning)
    return made


def run_options(library: Any, chosen: ONNXRuntimeOptions, place: Device) -> Any:
    """None where the library's own will do."""
    if chosen.arena != "shrunk":
        return None
    made = library.RunOptions()
    arenas = "cpu:0" + (f";gpu:{place.index}" if place.is_cuda else "")
    made.add_run_config_entry("memory.enable_memory_arena_shrinkage", arenas)
    return made


def _cuda(chosen: ONNXRuntimeOptions, place: Device) -> dict[str, Any]:
    made: dict[str, Any] = {
        "device_id": place.index,
        "arena_extend_strategy": GROWTH[chosen.arena_growth],
        "cudnn_conv_algo_search": "HEURISTIC",
        "use_tf32": 0,  # fp32 means fp32
    }
    if chosen.gpu_memory_mib is not None:
        made["gpu_mem_limit"] = chosen.gpu_memory_mib << 20
    return made


def library() -> Any:
    """The `onnxruntime` module. Raises `MissingBackend` where it is not installed."""
    needed = "the onnxruntime runtime needs its package"
    return errors.library("onnxruntime", needed, "headrace[onnxruntime]")


def preload(module: Any, tensorrt: bool = False) -> None:
    """Loads CUDA, cuDNN and TensorRT from NVIDIA's own packages where they are installed: the
    library looks for them on the system alone, so that its providers would not start. What is not
    found is left for the start of the provider to miss."""
    if tensorrt:
        with contextlib.suppress(ImportError, OSError):  # of its libraries
            importlib.import_module("tensorrt")
    found = getattr(module, "preload_dlls", None)  # since ONNX Runtime 1.21
    if found is not None:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints a line for each it misses
            found()


def opened(
    file: Path,
    session_options: Any,
    wanted: Sequence[Provider] = ((CPU, {}),),
    without: Sequence[str] = (),
) -> Any:
    """`without`: names of optimisations. Raises `LoadError` for a model that cannot be loaded,
    `MissingBackend` for a provider that did not start."""
    try:
        made = library().InferenceSession(
            str(file), session_options, list(wanted), disabled_optimizers=list(without)
        )
    except Exception as error:  # the library's errors share no base class
        raise LoadError(f"ONNX Runtime cannot load the model: {error}") from error
    # The library goes on without a provider that it cannot start.
    missing = [name for name, _ in wanted if name not in made.get_providers()]
    if missing:
        raise MissingBackend(
            f"ONNX Runtime could not start {' and '.join(missing)}, see its log: its libraries "
            "(CUDA, cuDNN, TensorRT) must be of the versions that this build asks for"
        )
    return made


def plain(file: Path) -> Any:
    """Of the graph as it is stored, without optimisations."""
    levels = library().GraphOptimizationLevel
    return opened(file, _session_options(levels.ORT_DISABLE_ALL))


def optimise(stored: Path) -> None:
    """For processors. Writes model.onnx beside it, with its weights in model.weights."""
    levels, folder = library().GraphOptimizationLevel, stored.parent
    made = _session_options(levels.ORT_ENABLE_ALL)
    made.optimized_model_filepath = str(folder / "model.onnx")
    made.add_session_config_entry(
        "session.optimized_model_external_initializers_file_name", "model.weights"
    )
    opened(stored, made, without=SLOWER)


def _session_options(level: Any) -> Any:
    made = library().SessionOptions()
    made.log_severity_level = ERRORS_ONLY
    made.graph_optimization_level = level
    return made
