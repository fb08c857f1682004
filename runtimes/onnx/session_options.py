"""The ONNX Runtime backend's options, and what its sessions and providers are told of them.

Options become the library's session options and its list of execution providers, in the order of
preference: TensorRT, CUDA, the processors, which run what the ones before them cannot. Pure: the
library is handed in, so that all of it can be tested where it sees no GPU.

Source: ONNX Runtime's documentation of the CUDA and TensorRT execution providers, of memory arenas
and of thread management.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runtimes.device import Device
from runtimes.graph.options import DeviceOptions
from runtimes.shapes import OptimizationProfile
from runtimes.types import TensorSpec

ERRORS_ONLY = 3  # the log level: storing an optimised graph warns each time that it is hardware's
CPU, CUDA, TENSORRT = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "Tensorrt"))
GROWTH = {"exact": "kSameAsRequested", "doubling": "kNextPowerOfTwo"}
Provider = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ONNXRuntimeOptions(DeviceOptions):
    """tensorrt_engines: for what TensorRT can run, CUDA for the rest. io_binding: inputs and
    outputs are bound to memory instead of handed over. arena: memory that is kept between batches,
    given back after each, or taken each time; arena_growth: by what is asked or by doubling;
    gpu_memory_mb: the most a GPU's arena takes, 0 for all. execution: operators in turn, or
    independent ones at once on inter_op_threads. spinning: idle threads wait actively, which gains
    a little latency and takes processors from others."""

    tensorrt_engines: bool = False
    io_binding: bool = False
    arena: Literal["kept", "shrunk", "off"] = "kept"
    arena_growth: Literal["exact", "doubling"] = "doubling"
    gpu_memory_mb: int = 0
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
        if self.gpu_memory_mb < 0:
            raise ValueError(
                f"option 'gpu_memory_mb' is {self.gpu_memory_mb}, it must be 0 or more"
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
        found.insert(0, (TENSORRT, _tensorrt(place, engines, profile)))
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
    if chosen.gpu_memory_mb:
        made["gpu_mem_limit"] = chosen.gpu_memory_mb << 20
    return made


def _tensorrt(place: Device, engines: Path, profile: Mapping[str, str]) -> dict[str, Any]:
    return {
        "device_id": place.index,
        "trt_engine_cache_enable": True,
        "trt_engine_cache_path": str(engines),
        "trt_timing_cache_enable": True,
        "trt_timing_cache_path": str(engines),
        **profile,
    }
