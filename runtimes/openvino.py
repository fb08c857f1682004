"""How does a model run on OpenVINO's CPU plugin?

Staged as IR and compiled for dynamic shapes at the precision that the settings name, never at the
plugin's own choice. Compiled code is cached without weights beside the IR: those stay a mapped
file that all replicas of the host share. One stream, tuned for latency; threads are not pinned,
because every replica's would be pinned to the same processors.

Other devices than the CPU, and static shapes, are not offered here. Source: OpenVINO's
documentation of the CPU device and of model caching.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import ml_dtypes
import numpy as np

from runtimes import bert_graph, openvino_model, options, staging
from runtimes.errors import LoadError, RunError
from runtimes.graph_options import GraphOptions
from runtimes.graph_runtime import Engine, GraphRuntime
from runtimes.openvino_library import library
from runtimes.signature import GraphFacts
from runtimes.source import Source, SourceKind, inspect
from runtimes.types import RuntimeSettings, StageTimes

Array = np.ndarray[Any, Any]
HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
CAPABILITIES = {"fp32": "FP32", "bf16": "BF16", "fp16": "FP16"}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
LAYOUT = "1"  # of a staged entry; raised when what is built for the same inputs changes


@dataclass(frozen=True, slots=True)
class OpenVINOOptions(GraphOptions):
    """streams: batches that the device would work on at once; a replica runs one. pin_threads:
    to processors, for a host with a single replica. shape_cache: how many kernels, over all
    shapes, stay compiled."""

    streams: int = 1
    pin_threads: bool = False
    shape_cache: int = 5000


class OpenVINORuntime(GraphRuntime):
    """`runtimes.types.Runtime` on OpenVINO."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._openvino_options = options.parse(OpenVINOOptions, settings.options)
        super().__init__(settings, self._openvino_options)

    def _open(self) -> Engine:
        settings, core = self._settings, library().Core()
        _check_precision(core, settings.precision)
        if settings.source is None:
            raise LoadError("the openvino runtime needs a source")
        source = inspect(settings.source, settings.cache_dir)
        settings.progress("staging", 0.0)
        entry = staging.staged(settings.cache_dir, self._parts(source), self._stage(source))
        settings.progress("staging", 1.0)
        settings.progress("compiling", 0.0)
        with staging.exclusive(entry):  # the plugin's cache is not safe between processes
            engine = OpenVINOEngine(
                core, entry / "model.xml", self._config(entry), _longest(source)
            )
        settings.progress("compiling", 1.0)
        return engine

    def _stage(self, source: Source) -> Any:
        def build(folder: Path) -> None:
            model = openvino_model.read(source, self._settings, self._options)
            openvino_model.save(model, folder / "model.xml")

        return build

    def _parts(self, source: Source) -> list[str]:
        chosen, mask = self._options, self._settings.mask_input
        graph = f"{chosen.pooling} {chosen.normalize} {chosen.embed_output} {mask}"
        version = library().get_version()
        precision = f"{self._settings.task} {self._settings.precision}"
        return [source.digest, "openvino", LAYOUT, version, precision, graph, staging.processor()]

    def _config(self, entry: Path) -> dict[str, str | int | bool]:
        chosen = self._openvino_options
        return {
            "INFERENCE_PRECISION_HINT": HINTS[self._settings.precision],
            "INFERENCE_NUM_THREADS": self._threads(),
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": chosen.streams,
            "ENABLE_CPU_PINNING": chosen.pin_threads,
            "CPU_RUNTIME_CACHE_CAPACITY": chosen.shape_cache,
            "CACHE_DIR": str(entry / "compiled"),
            "CACHE_MODE": "OPTIMIZE_SIZE",
        }


class OpenVINOEngine:
    """`Engine` with one request of one compiled model; inputs are read where they lie."""

    platform = "openvino"

    def __init__(
        self, core: Any, file: Path, config: Mapping[str, Any], max_length: int | None
    ) -> None:
        self._ov = library()
        self.facts: GraphFacts = openvino_model.facts(core.read_model(str(file)), max_length)
        try:
            self._compiled = core.compile_model(str(file), "CPU", dict(config))
        except RuntimeError as error:
            raise LoadError(f"OpenVINO cannot compile the model: {error}") from error
        self._request: Any = self._compiled.create_infer_request()

    def infer(
        self, arrays: Mapping[str, Array], outputs: Sequence[str], times: StageTimes
    ) -> list[Array]:
        request = self._request
        begin = perf_counter()
        # The library shares the arrays' memory and keeps none of them alive.
        kept = {name: _writable(array) for name, array in arrays.items()}
        for name, array in kept.items():
            request.set_tensor(name, self._tensor(array))
        ready = perf_counter()
        try:
            request.infer()
        except RuntimeError as error:
            raise RunError(f"OpenVINO: {error}") from error
        done = perf_counter()
        found = [self._array(request.get_tensor(name)) for name in outputs]
        times.copy_in_s += ready - begin
        times.run_s += done - ready
        times.copy_out_s += perf_counter() - done
        return found

    def close(self) -> None:
        self._request = self._compiled = None

    def _tensor(self, array: Array) -> Any:
        """Over the array's own memory, which the caller keeps until the run has ended."""
        if array.dtype == BFLOAT16:
            return self._ov.Tensor(array.view(np.uint16), array.shape, self._ov.Type.bf16)
        return self._ov.Tensor(array, shared_memory=True)

    def _array(self, tensor: Any) -> Array:
        """A copy: the next batch writes to the same memory."""
        data = tensor.data
        if tensor.element_type == self._ov.Type.bf16:
            data = data.view(BFLOAT16)
        return np.array(data)


def _writable(array: Array) -> Array:
    """The library insists on memory that it may write to, though it does not write; what came off
    a network may be read-only, and is copied."""
    return np.require(array, requirements=["C", "W"])


def _check_precision(core: Any, precision: str) -> None:
    able = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if precision not in HINTS or CAPABILITIES[precision] not in able:
        known = [name for name, word in CAPABILITIES.items() if word in able]
        raise LoadError(
            f"OpenVINO has no {precision} on this processor; precision may be {' or '.join(known)}"
        )


def _longest(source: Source) -> int | None:
    if source.kind is not SourceKind.HUGGING_FACE:
        return None
    return bert_graph.read_config(source.path).max_length
