"""Builds a TensorRT plan (a serialised engine) from an ONNX file.

`build` parses the graph, adds an optimisation profile for each of the engine's shapes, and builds
the engine. The network is strongly typed: an engine computes in the types of its graph, so there is
a graph for each precision (`runtimes.onnx.half`). The timing cache of earlier builds makes this
faster. If the parser or the builder fails, the `LoadError` quotes its message. Building takes
minutes for each model, so the caller stages the result.

Unverified here: see docs/runtimes.md. Source: the Python API of TensorRT 10 and 11 (`Builder`,
`OnnxParser`, `IBuilderConfig`), in which 11 has no flags for fp16 and bf16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runtimes.errors import LoadError
from runtimes.shapes import OptimizationProfile
from runtimes.tensorrt import profiles as tensorrt_profiles
from runtimes.tensorrt.profiles import EnginePlan
from runtimes.types import TensorSpec


def build(
    library: Any,
    model: Path,
    plan: EnginePlan,
    axis: int | None,
    timings: Path,
) -> bytes:
    """The serialised engine. Raises `LoadError`.

    `model`: the graph, in the plan's precision. `axis`: the axis of inputs that follows the length.
    `timings`: the timing cache's file, which is read and written.
    """
    logger = library.Logger(library.Logger.ERROR)
    builder = library.Builder(logger)
    typed = library.NetworkDefinitionCreationFlag.STRONGLY_TYPED  # always so from 11 on
    network = builder.create_network(1 << int(typed))
    parser = library.OnnxParser(network, logger)
    if not parser.parse_from_file(str(model)):
        raise LoadError(f"TensorRT cannot read the model: {_errors(parser)}")
    config = builder.create_builder_config()
    config.clear_flag(library.BuilderFlag.TF32)  # else fp32 would compute in TF32
    for profile in plan.profiles:
        config.add_optimization_profile(_profile(builder, network, profile, axis))
    cache = config.create_timing_cache(timings.read_bytes() if timings.exists() else b"")
    config.set_timing_cache(cache, ignore_mismatch=False)
    made = builder.build_serialized_network(network, config)
    if made is None:
        raise LoadError(f"TensorRT cannot build the {plan.name} engine in {plan.precision}")
    _write(timings, bytes(config.get_timing_cache().serialize()))
    return bytes(made)


def build_all(
    engines: Sequence[EnginePlan],
    build_one: Callable[[EnginePlan], bytes],
    folder: Path,
    progress: Callable[[str, float], None],
) -> None:
    """Writes one file for each engine into `folder`: `<name>.plan`."""
    for done, plan in enumerate(engines):
        progress("compiling", done / len(engines))
        (folder / f"{plan.name}.plan").write_bytes(build_one(plan))
    progress("compiling", 1.0)


def _profile(builder: Any, network: Any, profile: OptimizationProfile, axis: int | None) -> Any:
    made = builder.create_optimization_profile()
    for at in range(network.num_inputs):
        port = network.get_input(at)
        spec = TensorSpec(port.name, "", tuple(port.shape))
        made.set_shape(port.name, *shapes_of(spec, profile, axis))
    return made


def shapes_of(
    spec: TensorSpec, profile: OptimizationProfile, axis: int | None
) -> list[tuple[int, ...]]:
    """An input's minimum, typical and maximum shape, in the order that TensorRT's `set_shape` takes
    them. Raises `LoadError`."""
    return [tensorrt_profiles.known(spec, sizes) for sizes in profile.shapes(spec, axis)]


def _errors(parser: Any) -> str:
    return "; ".join(str(parser.get_error(at)) for at in range(parser.num_errors)) or "no reason"


def _write(file: Path, content: bytes) -> None:
    """Replaces the file in one step, since another replica's build may be reading it."""
    fresh = file.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.rename(file)
