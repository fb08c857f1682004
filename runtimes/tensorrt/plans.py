"""Which TensorRT engines a model gets, how they are built, and whether stored ones may run here.

A model has three engines. *latency* takes one row, *throughput* up to the batch target; both have
the configured precision and a profile for each bucket edge. *fallback* takes every batch within the
bounds, with one profile, in fp32; in eight bits as the others, or a row's answer would differ by
the whole error of quantisation with the batch it is in. The network is strongly typed: an engine
computes in the types of its graph (`runtimes.onnx`). The timing cache makes later builds faster.

A *plan* (a serialised engine) is code for one model of GPU, one driver and one version of TensorRT.
Folders get copied between machines, so the facts beside a plan are checked before it is opened.
Unverified here: see docs/runtimes.md. Source: TensorRT's developer guide; its Python API 10 and 11.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from runtimes import warmup
from runtimes.calibration import PRECISIONS
from runtimes.cuda import VisibleGpu
from runtimes.errors import LoadError, RefusedArtifact
from runtimes.types import TensorSpec
from runtimes.warmup import OptimizationProfile, SizeRange

LATENCY, THROUGHPUT, FALLBACK = "latency", "throughput", "fallback"


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """An engine to be built."""

    name: str  # latency, throughput or fallback
    precision: str  # as settings name it
    profiles: tuple[OptimizationProfile, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The batches that engines must take."""

    edges: tuple[int, ...]  # of buckets, up to the longest row; (1,) for rows without a length
    max_size: int  # rows in a batch
    max_tokens: int  # tokens in a batch, padding included
    recorded: tuple[int, ...] = ()  # lengths of real rows, in any order


def plans(bounds: Bounds, precision: str) -> tuple[EnginePlan, ...]:
    """The three engines, in the order in which `chosen` tries them."""
    ranges = length_ranges(bounds.edges, bounds.recorded)
    single = tuple(OptimizationProfile(SizeRange(1, 1, 1), lengths) for lengths in ranges)
    # From one row to a full batch, tuned for a full one, which the throughput engine is for.
    full = [max(1, min(bounds.max_size, bounds.max_tokens // each.most)) for each in ranges]
    many = tuple(
        OptimizationProfile(SizeRange(1, rows, rows), lengths)
        for rows, lengths in zip(full, ranges, strict=True)
    )
    typical = int(statistics.median(bounds.recorded)) if bounds.recorded else ranges[-1].typical
    longest = bounds.edges[-1]
    whole = OptimizationProfile(
        SizeRange(1, max(1, bounds.max_size // 2), bounds.max_size),
        SizeRange(1, min(max(1, typical), longest), longest),
    )
    return (
        EnginePlan(LATENCY, precision, single),
        EnginePlan(THROUGHPUT, precision, many),
        EnginePlan(FALLBACK, fallback_precision(precision), (whole,)),
    )


def fallback_precision(precision: str) -> str:
    return precision if precision in PRECISIONS else "fp32"


def length_ranges(edges: Sequence[int], recorded: Sequence[int]) -> tuple[SizeRange, ...]:
    """Each bucket's lengths; the typical one is the median of recorded ones, else the edge."""
    found, below = [], 0
    for edge in edges:
        inside = [length for length in recorded if below < length <= edge]
        typical = int(statistics.median(inside)) if inside else edge
        found.append(SizeRange(below + 1, typical, edge))
        below = edge
    return tuple(found)


def chosen(engines: Sequence[EnginePlan], rows: int, length: int) -> tuple[str, int] | None:
    """The first engine and profile (by number) whose range contains a batch of `rows` padded to
    `length`; None if there is none."""
    for engine in engines:
        for number, profile in enumerate(engine.profiles):
            if profile.holds(rows, length):
                return engine.name, number
    return None


def shape(spec: TensorSpec, axis: int | None, rows: int, length: int) -> tuple[int, ...]:
    """An input's shape in a batch. Raises `LoadError` for a dynamic axis that is neither the batch
    nor the length."""
    return known(spec, warmup.sized(spec, axis, rows, length))


def known(spec: TensorSpec, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns `sizes`; raises `LoadError` if one is -1, that is unknown."""
    if -1 in sizes:
        raise LoadError(
            f"tensorrt needs fixed sizes besides rows and length, but input '{spec.name}' is "
            f"{list(spec.shape)}: export it with a fixed axis {sizes.index(-1)}, or use onnxruntime"
        )
    return sizes


FACTS = "plans.json"


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What plans were built from, and for which machine."""

    model: str
    tensorrt: str  # version
    driver: str  # version
    gpu: str
    capability: str  # CUDA compute capability
    shapes: str  # digest of engines and profiles

    @classmethod
    def of(cls, model: str, tensorrt: str, gpu: VisibleGpu, shapes: str) -> PlanFacts:
        return cls(model, tensorrt, gpu.driver, gpu.name, gpu.capability, shapes)

    def key(self) -> list[str]:
        return [f"{field.name}={getattr(self, field.name)}" for field in fields(self)]


def write(facts: PlanFacts, folder: Path) -> None:
    (folder / FACTS).write_text(json.dumps(asdict(facts), indent=1))


def check(folder: Path, here: PlanFacts) -> None:
    """Raises `RefusedArtifact` if the folder's plans are for another machine or model, and
    `LoadError` if it has none."""
    try:
        stored = PlanFacts(**json.loads((folder / FACTS).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise LoadError(f"{folder} holds no TensorRT plans ({FACTS}: {error})") from error
    if (stored.gpu, stored.capability) != (here.gpu, here.capability):
        why = (
            f"for another GPU, {stored.gpu} (compute capability {stored.capability}); this is "
            f"{here.gpu} ({here.capability})"
        )
    elif stored.tensorrt != here.tensorrt:
        why = f"by TensorRT {stored.tensorrt}; this is {here.tensorrt}"
    elif stored.driver != here.driver:
        why = f"under driver {stored.driver}; this is {here.driver}"
    elif (stored.model, stored.shapes) != (here.model, here.shapes):
        why = "of another model, or for other buckets, batches or precision"
    else:
        return
    raise RefusedArtifact(
        f"the TensorRT plans in {folder} were built {why}. Remove the option 'plans' to have them "
        "built here"
    )


def timing_cache(cache_dir: Path, here: PlanFacts) -> Path:
    """The timing cache's file for this GPU, driver and TensorRT; creates its folder."""
    parts = json.dumps([here.tensorrt, here.driver, here.gpu, here.capability])
    folder = cache_dir / "tensorrt-timing"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{hashlib.sha256(parts.encode()).hexdigest()[:32]}.cache"


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
        wrong = "; ".join(str(parser.get_error(at)) for at in range(parser.num_errors))
        raise LoadError(f"TensorRT cannot read the model: {wrong or 'no reason'}")
    config = builder.create_builder_config()
    config.clear_flag(library.BuilderFlag.TF32)  # else fp32 would compute in TF32
    for profile in plan.profiles:
        config.add_optimization_profile(_profile(builder, network, profile, axis))
    cache = config.create_timing_cache(timings.read_bytes() if timings.exists() else b"")
    config.set_timing_cache(cache, ignore_mismatch=False)
    made = builder.build_serialized_network(network, config)
    if made is None:
        raise LoadError(f"TensorRT cannot build the {plan.name} engine in {plan.precision}")
    fresh = timings.with_suffix(".new")  # renamed, since another replica's build may be reading
    fresh.write_bytes(bytes(config.get_timing_cache().serialize()))
    fresh.rename(timings)
    return bytes(made)


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
    return [known(spec, sizes) for sizes in profile.shapes(spec, axis)]
