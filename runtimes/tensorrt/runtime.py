"""The TensorRT backend: loads a model and runs its batches.

The source is staged as ONNX in the configured precision, int8 and fp8 with the ranges of recorded
rows, and in the fallback's. From that, three engines are built and staged as plans:
for one row, for full batches, and for every other batch (`profiles`). A plan runs on one model of
GPU only (`plans`). The edges of buckets are fixed, since each edge has a profile. CUDA graphs are
captured for each bucket's shapes.

Unverified here: see docs/runtimes.md. The libraries are imported when a model is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from runtimes import calibration, cuda, errors, options, staging, warmup
from runtimes.cuda import CudaMemory, gpus
from runtimes.errors import LoadError, MissingBackend
from runtimes.graph.dense import GraphFacts, declare
from runtimes.graph.options import DeviceOptions
from runtimes.graph.runtime import Engine, GraphRuntime
from runtimes.onnx import explicit_quantization, precision
from runtimes.onnx import model as onnx_model
from runtimes.source import Source
from runtimes.tensorrt import plans as tensorrt_plans
from runtimes.tensorrt.engine import Engines, TensorRTEngine
from runtimes.tensorrt.plans import Bounds, EnginePlan, PlanFacts
from runtimes.types import Limits, RuntimeSettings, TensorSpec

LAYOUT = "2"  # part of a staged entry's key; raised when the same inputs get built differently
FACTS = "facts.json"
PLATFORM = TensorRTEngine.platform


@dataclass(frozen=True, slots=True)
class TensorRTOptions(DeviceOptions):
    """The backend's options in the settings."""

    cuda_graphs: bool = True  # capture graphs for each bucket's shapes
    recorded_lengths: tuple[int, ...] = ()  # of real rows; each profile is tuned for its median
    plans: str | None = None  # a folder of plans built on another machine with the same GPU

    def __post_init__(self) -> None:
        DeviceOptions.__post_init__(self)
        if self.device == "cpu":
            raise ValueError("option 'device' is 'cpu', but tensorrt runs on GPUs alone")
        if self.keep_fp32:
            raise ValueError("tensorrt has no option 'keep_fp32'")
        if any(length < 1 for length in self.recorded_lengths):
            raise ValueError("option 'recorded_lengths' contains a length below 1")


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be built for a model."""

    facts: GraphFacts
    limits: Limits
    edges: tuple[int, ...]
    engines: tuple[EnginePlan, ...]

    @property
    def axis(self) -> int | None:
        return self.limits.length_axis if self.limits.length_input else None


class TensorRTRuntime(GraphRuntime):
    """`runtimes.types.Runtime` on TensorRT."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._own = options.parse(TensorRTOptions, settings.options)
        super().__init__(settings, self._own)

    def _open(self) -> Engine:
        settings, seen = self._settings, gpus()
        place = options.chosen_device(self._own.device, len(seen), "tensorrt")
        if not place.is_cuda:
            raise MissingBackend("the tensorrt runtime needs an NVIDIA GPU, and none is here")
        calibration.check(settings.precision, self._options)
        cuda.check_precision(seen[place.index], settings.precision)
        if settings.precision in calibration.PRECISIONS:
            explicit_quantization.require()
        needed = "the tensorrt runtime needs its packages"
        library, source = errors.library("tensorrt", needed, "headrace[tensorrt]"), self._source()
        memory = CudaMemory(place.index)  # before any build, because this chooses the GPU
        settings.progress("staging", 0.0)
        parts = [source.digest, "tensorrt graph", LAYOUT, settings.task, settings.precision]
        parts.append(self._graph_key(source))
        graph = staging.staged(settings.cache_dir, parts, self._stage(source))
        settings.progress("staging", 1.0)
        plan = self._planned(graph)
        here = PlanFacts.of(
            f"{source.digest} {settings.task} {graph.name}",
            str(library.__version__),
            seen[place.index],
            hashlib.sha256(repr(plan.engines).encode()).hexdigest()[:16],
        )
        folder = self._plans(library, graph, plan, here)
        tensorrt_plans.check(folder, here)
        opened = {each.name: _opened(library, folder, each.name) for each in plan.engines}
        captured = warmup.shapes(settings, plan.limits) if self._own.cuda_graphs else ()
        engines = Engines(
            plan.engines, opened, plan.limits.length_input, plan.axis, plan.edges, captured
        )
        return TensorRTEngine(engines, plan.facts, memory, str(place))

    def _stage(self, source: Source) -> Callable[[Path], None]:
        read = partial(onnx_model.read, source, self._settings, self._options, standard=True)

        def build(folder: Path) -> None:
            model = read()
            stored = {
                "inputs": onnx_model.specs(model.graph.input, model),
                "outputs": onnx_model.specs(model.graph.output, model),
                "id_bounds": onnx_model.id_bounds(model),
                "max_length": source.longest,
            }
            (folder / FACTS).write_text(json.dumps(stored))
            wanted = self._settings.precision
            if wanted in calibration.PRECISIONS:
                model = explicit_quantization.quantised(
                    model, folder, self._settings, self._options
                )
            elif wanted != "fp32":
                onnx_model.save(model, folder / _graph_file("fp32"))
                model = precision.halved(read(), wanted)  # what was saved has left its weights
            onnx_model.save(model, folder / _graph_file(wanted))

        return build

    def _planned(self, graph: Path) -> _Plan:
        """The engines for a staged graph. Raises `LoadError` if the graph lacks what the settings
        ask for."""
        stored = json.loads((graph / FACTS).read_text())
        for side in ("inputs", "outputs"):
            specs = stored[side]
            stored[side] = tuple(
                TensorSpec(name, kind, tuple(sizes)) for name, kind, sizes in specs
            )
        facts = GraphFacts(**stored)
        limits = declare(facts, self._settings, PLATFORM).limits
        edges = warmup.fixed_edges(self._settings, limits)
        bounds = Bounds(
            edges or (1,),
            self._settings.max_size,
            self._settings.max_tokens,
            self._own.recorded_lengths if edges else (),
        )
        engines = tensorrt_plans.plans(bounds, self._settings.precision)
        return _Plan(facts, limits, edges, engines)

    def _plans(self, library: Any, graph: Path, plan: _Plan, here: PlanFacts) -> Path:
        """The folder of the plans: the one in the settings, or a staged one, built if necessary."""
        if self._own.plans is not None:
            return Path(self._own.plans)
        cache_dir = self._settings.cache_dir
        timings = tensorrt_plans.timing_cache(cache_dir, here)

        def build(folder: Path) -> None:
            for done, each in enumerate(plan.engines):
                self._settings.progress("compiling", done / len(plan.engines))
                file = graph / _graph_file(each.precision)
                made = tensorrt_plans.build(library, file, each, plan.axis, timings)
                (folder / f"{each.name}.plan").write_bytes(made)
            self._settings.progress("compiling", 1.0)
            tensorrt_plans.write(here, folder)

        return staging.staged(cache_dir, ["tensorrt plans", LAYOUT, *here.key()], build)


def _graph_file(precision: str) -> str:
    return f"{precision}.onnx"


def _opened(library: Any, folder: Path, name: str) -> Any:
    file = folder / f"{name}.plan"
    runtime = library.Runtime(library.Logger(library.Logger.ERROR))
    try:
        engine = runtime.deserialize_cuda_engine(file.read_bytes())
    except OSError as error:
        raise LoadError(f"{file} cannot be read: {error}") from error
    if engine is None:
        raise LoadError(f"TensorRT cannot open {file}; remove its folder to have it built again")
    return engine
