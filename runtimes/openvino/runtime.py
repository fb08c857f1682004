"""A model on OpenVINO's CPU plugin.

Staged as IR and compiled at the precision that the settings name, never at the plugin's own choice;
for dynamic shapes, or once for each bucket edge (`shapes: buckets`), which takes memory for some
speed. Compiled code is cached without weights beside the IR: those stay a mapped file that all
replicas of the host share. One stream, tuned for latency. Threads are bound by `pinning`, not by
the plugin, which would bind every replica's to the same processors.

Other devices than the CPU are not offered here. Source: OpenVINO's documentation of the CPU device,
of dynamic shapes and of model caching.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import ml_dtypes
import numpy as np

from runtimes import calibration, options, pinning, shapes, staging
from runtimes.errors import LoadError, RunError
from runtimes.graph import bert as bert_graph
from runtimes.graph.dense import follows_length
from runtimes.graph.options import GraphOptions
from runtimes.graph.runtime import Engine, GraphRuntime
from runtimes.locked_memory import LockedFile
from runtimes.onnx import int8 as onnx_int8
from runtimes.onnx import model as onnx_model
from runtimes.openvino import model as openvino_model
from runtimes.openvino.library import library
from runtimes.pinning import Pin
from runtimes.signature import GraphFacts
from runtimes.source import Source, SourceKind
from runtimes.types import Limits, RuntimeSettings, StageTimes

Array = np.ndarray[Any, Any]
# Of int8, what is not in 8 bits computes in fp32.
HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "int8": "f32"}
CAPABILITIES = {"fp32": "FP32", "bf16": "BF16", "fp16": "FP16", "int8": "INT8"}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
LAYOUT = "5"  # of a staged entry; raised when what is built for the same inputs changes


@dataclass(frozen=True, slots=True)
class OpenVINOOptions(GraphOptions):
    """streams: parts that the threads are split into; a batch runs on one part. shapes: compiled
    for any, or once for each bucket edge. pin: what its threads keep to. mlock: the weights' file
    stays in memory. shape_cache: how many kernels, over all shapes, stay compiled."""

    streams: int = 1
    shapes: Literal["dynamic", "buckets"] = "dynamic"
    pin: Pin = "off"
    mlock: bool = False
    shape_cache: int = 5000


class OpenVINORuntime(GraphRuntime):
    """`runtimes.types.Runtime` on OpenVINO."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._own = options.parse(OpenVINOOptions, settings.options)
        super().__init__(settings, self._own)

    def _open(self) -> Engine:
        settings, core = self._settings, library().Core()
        _check_precision(core, settings.precision)
        calibration.check(settings.precision, self._options)
        settings.progress("staging", 0.0)
        entry, source = self.staged(), self._source()
        settings.progress("staging", 1.0)
        settings.progress("compiling", 0.0)
        claim = pinning.claim(self._own.pin, self._threads(), settings.cache_dir / "pins")
        how = Compiling(self._config(entry, claim), self._own.shapes, settings, claim)
        try:
            locked = LockedFile(entry / "model.bin") if self._own.mlock else None
            with staging.exclusive(entry):  # the plugin's cache is not safe between processes
                engine = OpenVINOEngine(
                    core, entry / "model.xml", how, bert_graph.max_length(source), locked
                )
        except BaseException:
            if claim is not None:
                claim.release()
            raise
        settings.progress("compiling", 1.0)
        return engine

    def staged(self) -> Path:
        """The folder of model.xml, converted now or earlier. Raises `LoadError`."""
        source = self._source()
        return staging.staged(self._settings.cache_dir, self._parts(source), self._stage(source))

    def _stage(self, source: Source) -> Any:
        def build(folder: Path) -> None:
            if self._settings.precision == "int8":
                self._quantise(source, folder)
                return
            model = openvino_model.read(source, self._settings, self._options)
            openvino_model.save(model, folder / "model.xml", self._own.keep_fp32)

        return build

    def _quantise(self, source: Source, folder: Path) -> None:
        """From the same ONNX graph that ONNX Runtime would quantise."""
        if source.kind is SourceKind.OPENVINO_IR:
            raise LoadError(
                f"{source.path}: precision int8 takes a folder or an ONNX file, not OpenVINO IR; "
                "an IR that is quantised already runs at fp32"
            )
        graph = onnx_model.read(source, self._settings, self._options)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            file = onnx_int8.build(graph, Path(scratch), self._settings, self._options)
            openvino_model.save(library().Core().read_model(str(file)), folder / "model.xml")

    def _parts(self, source: Source) -> list[str]:
        graph = self._graph_key()
        version = library().get_version()
        precision = f"{self._settings.task} {self._settings.precision}"
        return [source.digest, "openvino", LAYOUT, version, precision, graph, staging.processor()]

    def _config(
        self, entry: Path, claim: pinning.ProcessorClaim | None
    ) -> dict[str, str | int | bool]:
        chosen, threads = self._own, self._threads()
        return {
            "INFERENCE_PRECISION_HINT": HINTS[self._settings.precision],
            "INFERENCE_NUM_THREADS": min(threads, len(claim.cpus)) if claim else threads,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": chosen.streams,
            "ENABLE_CPU_PINNING": False,
            "CPU_RUNTIME_CACHE_CAPACITY": chosen.shape_cache,
            "CACHE_DIR": str(entry / "compiled"),
            "CACHE_MODE": "OPTIMIZE_SIZE",
        }


@dataclass(frozen=True, slots=True)
class Compiling:
    """`config`: the plugin's. `claim`: the processors that run it, None for all."""

    config: Mapping[str, str | int | bool]
    shapes: str
    settings: RuntimeSettings
    claim: pinning.ProcessorClaim | None


class OpenVINOEngine:
    """`Engine` with one request a compiled model: one for any shape, or one for each bucket edge;
    inputs are read where they lie. Owns the claim and the locked file."""

    platform = "openvino"
    device = "cpu"

    def __init__(
        self,
        core: Any,
        file: Path,
        how: Compiling,
        max_length: int | None,
        locked: LockedFile | None = None,
    ) -> None:
        self._ov, self._core, self._file, self._how = library(), core, file, how
        self._locked = locked
        self._bound = 0  # the thread that keeps to the claim's processors
        self._requests: dict[int, Any] = {}  # by padded length; 0 runs any
        self._lengthwise: tuple[str, int] = ("", 0)
        try:
            self.facts: GraphFacts = openvino_model.facts(core.read_model(str(file)), max_length)
            self._requests[0] = self._compiled(None)
        except BaseException:
            self.close()
            raise

    def prepare(self, limits: Limits) -> tuple[int, ...]:
        """Raises `LoadError` for buckets of rows without a length that can be padded to."""
        if self._how.shapes == "dynamic":
            return ()
        if limits.length_input is None or limits.length_axis != 1:
            raise LoadError(
                "option 'shapes' is buckets, but the model's rows have no length on axis 1 to pad "
                "to an edge: set shapes to dynamic"
            )
        edges = shapes.fixed_edges(self._how.settings, limits)
        with staging.exclusive(self._file.parent):
            made = {edge: self._compiled(limits, edge) for edge in edges}
        self._requests, self._lengthwise = made, (limits.length_input, limits.length_axis)
        return edges

    def infer(
        self, arrays: Mapping[str, Array], outputs: Sequence[str], times: StageTimes
    ) -> list[Array]:
        request = self._request_for(arrays)
        self._bind()
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
        self._requests = {}
        if self._how.claim is not None:
            self._how.claim.release()
        if self._locked is not None:
            self._locked.release()

    def _compiled(self, limits: Limits | None, edge: int = 0) -> Any:
        """A request of the model compiled for any shape, or for rows of `edge`."""
        with self._how.claim.bound() if self._how.claim else nullcontext():
            try:
                model: Any = str(self._file)  # by its path, or the plugin's cache would miss it
                if limits is not None:
                    model = self._core.read_model(model)
                    model.reshape(self._static(limits, edge))
                compiled = self._core.compile_model(model, "CPU", dict(self._how.config))
                return compiled.create_infer_request()
            except RuntimeError as error:
                raise LoadError(f"OpenVINO cannot compile the model: {error}") from error

    def _static(self, limits: Limits, edge: int) -> dict[str, Any]:
        """Each input's shape with its length fixed; the number of rows stays free, as a shape for
        each would cost another copy of the repacked weights."""
        found = {}
        for spec in self.facts.inputs:
            sizes = list(spec.shape)
            if follows_length(spec, limits.length_axis):
                sizes[limits.length_axis] = edge
            found[spec.name] = self._ov.PartialShape(sizes)
        return found

    def _request_for(self, arrays: Mapping[str, Array]) -> Any:
        if 0 in self._requests:
            return self._requests[0]
        name, axis = self._lengthwise
        length = arrays[name].shape[axis] if name else 0
        if length not in self._requests:
            raise RunError(f"rows of {length} are none of {sorted(self._requests)}, which run here")
        return self._requests[length]

    def _bind(self) -> None:
        """Another thread may run than loaded; it keeps to the processors as well."""
        if self._how.claim is not None and self._bound != threading.get_ident():
            self._how.claim.bind()
            self._bound = threading.get_ident()

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
