"""The OpenVINO backend: loads a model and runs its batches on OpenVINO's CPU plugin.

The source is staged as IR and compiled at the settings' precision, not at one of the plugin's
choice. It is compiled for dynamic shapes, or once for each bucket edge (`shapes: buckets`), which
costs memory and gains some speed. The compiled code is cached beside the IR without the weights;
these stay a mapped file that all replicas on the host share. The plugin runs one stream, tuned for
latency. `pin` binds the threads, because the plugin would bind every replica's threads to the
same processors.

Devices other than the CPU are not supported. Source: OpenVINO's documentation of the CPU device, of
dynamic shapes and of model caching.
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

from runtimes import calibration, host, options, staging, warmup
from runtimes.errors import LoadError, RunError, failed
from runtimes.graph.dense import GraphFacts, follows_length
from runtimes.graph.options import GraphOptions
from runtimes.graph.runtime import Engine, GraphRuntime
from runtimes.host import LockedFile, Pin
from runtimes.onnx import model as onnx_model
from runtimes.onnx import precision
from runtimes.openvino import model as openvino_model
from runtimes.openvino.model import library
from runtimes.source import Source, SourceKind
from runtimes.types import Limits, RuntimeSettings, StageTimes

Array = np.ndarray[Any, Any]
# With int8, operations that are not quantised compute in fp32.
HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "int8": "f32"}
CAPABILITIES = {"fp32": "FP32", "bf16": "BF16", "fp16": "FP16", "int8": "INT8"}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
LAYOUT = "5"  # part of a staged entry's key; raised when the same inputs get built differently


@dataclass(frozen=True, slots=True)
class OpenVINOOptions(GraphOptions):
    """The backend's options in the settings."""

    streams: int = 1  # groups that the threads are divided into; a batch runs on one of them
    shapes: Literal["dynamic", "buckets"] = "dynamic"  # compile for any shape, or for each edge
    pin: Pin = "off"  # the processors that the threads are bound to
    mlock: bool = False  # lock the weights' file in memory
    shape_cache: int = 5000  # compiled kernels to keep, over all shapes


class OpenVINORuntime(GraphRuntime):
    """`runtimes.types.Runtime` on OpenVINO."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._own = options.parse(OpenVINOOptions, settings.options)
        super().__init__(settings, self._own)

    def _open(self) -> Engine:
        settings, core = self._settings, library().Core()
        able = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if CAPABILITIES.get(settings.precision) not in able:
            known = " or ".join(name for name, word in CAPABILITIES.items() if word in able)
            raise LoadError(
                f"OpenVINO has no {settings.precision} on this processor; precision may be {known}"
            )
        calibration.check(settings.precision, self._options)
        settings.progress("staging", 0.0)
        entry, source = self.staged(), self._source()
        settings.progress("staging", 1.0)
        settings.progress("compiling", 0.0)
        claim = host.claim(self._own.pin, self._threads(), settings.cache_dir / "pins")
        how = Compiling(self._config(entry, claim), self._own.shapes, settings, claim)
        try:
            locked = LockedFile(entry / "model.bin") if self._own.mlock else None
            with staging.exclusive(entry):  # the plugin's cache is not safe between processes
                engine = OpenVINOEngine(core, entry / "model.xml", how, source.longest, locked)
        except BaseException:
            if claim is not None:
                claim.release()
            raise
        settings.progress("compiling", 1.0)
        return engine

    def staged(self) -> Path:
        """The folder of model.xml, which is converted if it is not staged yet.

        Raises `LoadError`.
        """
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
        """Writes model.xml with int8 weights, from the ONNX graph that ONNX Runtime quantises."""
        if source.kind is SourceKind.OPENVINO_IR:
            raise LoadError(
                f"{source.path}: precision int8 needs a folder or an ONNX file, not OpenVINO IR; "
                "to run an IR that is quantised already, set precision fp32"
            )
        graph = onnx_model.read(source, self._settings, self._options)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            file = precision.build(graph, Path(scratch), self._settings, self._options)
            openvino_model.save(library().Core().read_model(str(file)), folder / "model.xml")

    def _parts(self, source: Source) -> list[str]:
        graph = self._graph_key(source)
        version = library().get_version()
        precision = f"{self._settings.task} {self._settings.precision}"
        return [source.digest, "openvino", LAYOUT, version, precision, graph, staging.processor()]

    def _config(
        self, entry: Path, claim: host.ProcessorClaim | None
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
    """How to compile a model."""

    config: Mapping[str, str | int | bool]  # of OpenVINO's plugin
    shapes: str
    settings: RuntimeSettings
    claim: host.ProcessorClaim | None  # the processors that run the model; None: all


class OpenVINOEngine:
    """A `graph.runtime.Engine` with one compiled model for all shapes, or one for each bucket edge.

    Each compiled model has one inference request. OpenVINO reads inputs from the caller's arrays,
    without a copy. Owns the claim and the locked file, and releases them in `close`.
    """

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
        self._bound = 0  # id of the thread that is bound to the claim's processors
        self._requests: dict[int, Any] = {}  # by padded length; key 0 takes any length
        self._lengthwise: tuple[str, int] = ("", 0)
        try:
            self.facts: GraphFacts = openvino_model.facts(core.read_model(str(file)), max_length)
            self._requests[0] = self._compiled(None)
        except BaseException:
            self.close()
            raise

    def prepare(self, limits: Limits) -> tuple[int, ...]:
        """Compiles for each bucket edge if the options say so, and returns the edges.

        Raises `LoadError` if `shapes` is buckets and the rows have no length on axis 1.
        """
        if self._how.shapes == "dynamic":
            return ()
        if limits.length_input is None or limits.length_axis != 1:
            raise LoadError(
                "option 'shapes' is buckets, but the model's rows have no length on axis 1 to pad "
                "to an edge: set shapes to dynamic"
            )
        edges = warmup.fixed_edges(self._how.settings, limits)
        with staging.exclusive(self._file.parent):
            made = {edge: self._compiled(limits, edge) for edge in edges}
        self._requests, self._lengthwise = made, (limits.length_input, limits.length_axis)
        return edges

    def infer(
        self, arrays: Mapping[str, Array], outputs: Sequence[str], times: StageTimes
    ) -> list[Array]:
        name, axis = self._lengthwise
        length = arrays[name].shape[axis] if name else 0
        request = self._requests.get(length)
        if request is None:
            raise RunError(
                f"no model is compiled for length {length}, only for {sorted(self._requests)}"
            )
        if self._how.claim is not None and self._bound != threading.get_ident():
            self._how.claim.bind()  # this thread, which may not be the one that loaded the model
            self._bound = threading.get_ident()
        begin = perf_counter()
        # OpenVINO shares the arrays' memory without a reference to them: `kept` keeps them alive.
        # It accepts only writable memory, though it does not write to it; arrays that were received
        # from the network may be read-only, and are copied.
        kept = {name: np.require(array, None, ["C", "W"]) for name, array in arrays.items()}
        for name, array in kept.items():
            request.set_tensor(name, self._tensor(array))
        ready = perf_counter()
        try:
            request.infer()
        except (RuntimeError, MemoryError) as error:
            raise failed(f"OpenVINO: {error}", error) from error
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
        """An inference request of the model compiled for any shape, or (given limits) for rows of
        the length `edge`. The number of rows stays dynamic, since each compiled shape costs another
        copy of the repacked weights."""
        with self._how.claim.bound() if self._how.claim else nullcontext():
            try:
                model: Any = str(self._file)  # the plugin caches only what it reads from a path
                if limits is not None:
                    model = self._core.read_model(model)
                    shapes = {}
                    for spec in self.facts.inputs:
                        sizes = list(spec.shape)
                        if follows_length(spec, limits.length_axis):
                            sizes[limits.length_axis] = edge
                        shapes[spec.name] = self._ov.PartialShape(sizes)
                    model.reshape(shapes)
                compiled = self._core.compile_model(model, "CPU", dict(self._how.config))
                return compiled.create_infer_request()
            except RuntimeError as error:
                raise LoadError(f"OpenVINO cannot compile the model: {error}") from error

    def _tensor(self, array: Array) -> Any:
        """A tensor on the array's own memory; the caller keeps the array until the run ends."""
        if array.dtype == BFLOAT16:
            return self._ov.Tensor(array.view(np.uint16), array.shape, self._ov.Type.bf16)
        return self._ov.Tensor(array, shared_memory=True)

    def _array(self, tensor: Any) -> Array:
        """A copy of the tensor, since the next batch overwrites its memory."""
        data = tensor.data
        if tensor.element_type == self._ov.Type.bf16:
            data = data.view(BFLOAT16)
        return np.array(data)
