"""How does a model run in ONNX Runtime on this machine's processors?

Optimised once a host: the optimised graph is stored, with weights beside it, and replicas load that
without optimising again; it holds code choices for the processor, so the processor is in its key.
One batch at a time, its operators in turn, each over as many threads as the control group allows.

Precision is the graph's own, fp32 for what is built here: the CPU provider has no bf16 arithmetic.
Other providers are not offered. Source: ONNX Runtime's documentation of graph optimisation and of
thread management.
"""

from __future__ import annotations

import ctypes
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import ml_dtypes
import numpy as np

from runtimes import bert_graph, calibration, onnx_int8, onnx_model, options, staging
from runtimes.errors import BadRows, LoadError, MissingBackend, RunError
from runtimes.graph_options import GraphOptions
from runtimes.graph_runtime import Engine, GraphRuntime
from runtimes.signature import GraphFacts
from runtimes.source import Source, SourceKind, inspect
from runtimes.types import Limits, RuntimeSettings, StageTimes, TensorSpec

Array = np.ndarray[Any, Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BFLOAT16_ELEMENT = 16  # TensorProto.BFLOAT16
ERRORS_ONLY = 3  # the log level: storing an optimised graph warns each time that it is hardware's
LAYOUT = "1"  # of a staged entry; raised when what is built for the same inputs changes
FACTS = "facts.json"
DATATYPES: Mapping[str, str] = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(bfloat16)": "BF16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}


@dataclass(frozen=True, slots=True)
class ONNXRuntimeOptions(GraphOptions):
    """execution: operators in turn, or independent ones at once on inter_op_threads. spinning:
    idle threads wait actively, which gains a little latency and takes processors from others."""

    execution: Literal["sequential", "parallel"] = "sequential"
    inter_op_threads: int = 1
    spinning: bool = False


class ONNXRuntimeRuntime(GraphRuntime):
    """`runtimes.types.Runtime` on ONNX Runtime."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._own_options = options.parse(ONNXRuntimeOptions, settings.options)
        super().__init__(settings, self._own_options)

    def _open(self) -> Engine:
        settings, library = self._settings, _library()
        if settings.precision not in ("fp32", "int8"):
            raise LoadError(
                f"onnxruntime has no {settings.precision} on CPU: set precision to fp32 or int8, "
                "or use openvino or torch for bf16"
            )
        calibration.check(settings.precision, self._options)
        source = self._source()
        settings.progress("staging", 0.0)
        entry = self._staged(source)
        settings.progress("staging", 1.0)
        settings.progress("compiling", 0.0)
        engine = ONNXRuntimeEngine(library, entry, self._session_options())
        settings.progress("compiling", 1.0)
        return engine

    def graph(self) -> Any:
        """The `ModelProto` before the library's optimisations, weights in memory."""
        source = self._source()
        if self._settings.precision == "int8":
            return onnx_model.load(self._staged(source) / onnx_int8.FILE)
        return onnx_model.read(source, self._settings, self._options)

    def _staged(self, source: Source) -> Path:
        return staging.staged(self._settings.cache_dir, self._parts(source), self._stage(source))

    def _source(self) -> Source:
        if self._settings.source is None:
            raise LoadError("the onnxruntime runtime needs a source")
        return inspect(self._settings.source, self._settings.cache_dir)

    def _stage(self, source: Source) -> Callable[[Path], None]:
        def build(folder: Path) -> None:
            model = onnx_model.read(source, self._settings, self._options)
            facts = {"id_bounds": onnx_model.id_bounds(model), "max_length": _longest(source)}
            (folder / FACTS).write_text(json.dumps(facts))
            if self._settings.precision == "int8":
                _optimise(onnx_int8.build(model, folder, self._settings, self._options))
                return
            onnx_model.save(model, folder / "plain.onnx")
            _optimise(folder / "plain.onnx")
            for file in folder.glob("plain.*"):
                file.unlink()

        return build

    def _parts(self, source: Source) -> list[str]:
        chosen, mask = self._options, self._settings.mask_input
        kept = f"{' '.join(chosen.keep_fp32)} {calibration.identity(chosen, self._settings)}"
        graph = f"{chosen.pooling} {chosen.normalize} {chosen.embed_output} {mask} {kept}"
        version, task = str(_library().__version__), self._settings.task
        return [source.digest, "onnxruntime", LAYOUT, version, task, graph, staging.processor()]

    def _session_options(self) -> Any:
        """For the stored graph, which needs no further optimisation."""
        library, chosen = _library(), self._own_options
        made = library.SessionOptions()
        made.log_severity_level = ERRORS_ONLY
        made.graph_optimization_level = library.GraphOptimizationLevel.ORT_DISABLE_ALL
        made.intra_op_num_threads = self._threads()
        made.inter_op_num_threads = chosen.inter_op_threads
        modes = library.ExecutionMode
        parallel = chosen.execution == "parallel"
        made.execution_mode = modes.ORT_PARALLEL if parallel else modes.ORT_SEQUENTIAL
        spinning = "1" if chosen.spinning else "0"
        made.add_session_config_entry("session.intra_op.allow_spinning", spinning)
        made.add_session_config_entry("session.inter_op.allow_spinning", spinning)
        return made


class ONNXRuntimeEngine:
    """`Engine` around one session over a staged folder."""

    platform = "onnxruntime_onnx"

    def __init__(self, library: Any, entry: Path, session_options: Any) -> None:
        self._library = library
        self._session: Any = _session(library, entry / "model.onnx", session_options)
        stored = json.loads((entry / FACTS).read_text())
        self.facts = GraphFacts(
            inputs=tuple(map(_spec, self._session.get_inputs())),
            outputs=tuple(map(_spec, self._session.get_outputs())),
            **stored,
        )
        specs = (*self.facts.inputs, *self.facts.outputs)
        # numpy has no bfloat16 of its own, so the library's short way in and out does not take it
        self._has_bf16 = any(spec.datatype == "BF16" for spec in specs)

    def infer(
        self, arrays: Mapping[str, Array], outputs: Sequence[str], times: StageTimes
    ) -> list[Array]:
        begin = perf_counter()
        feeds = {name: self._fed(array) for name, array in arrays.items()}
        ready = perf_counter()
        found = self._run(feeds, outputs)
        done = perf_counter()
        arrays_out = [_taken(value) for value in found]
        times.copy_in_s += ready - begin
        times.run_s += done - ready
        times.copy_out_s += perf_counter() - done
        return arrays_out

    def prepare(self, limits: Limits) -> tuple[int, ...]:
        return ()

    def close(self) -> None:
        self._session = None

    def _run(self, feeds: dict[str, Any], outputs: Sequence[str]) -> list[Any]:
        session = self._session
        run = session.run_with_ort_values if self._has_bf16 else session.run
        try:
            return list(run(list(outputs), feeds))
        except Exception as error:  # the library's errors share no base class
            raise RunError(f"ONNX Runtime: {error}") from error

    def _fed(self, array: Array) -> Any:
        if array.dtype.kind == "O":
            array = _texts(array)
        if not self._has_bf16:
            return array
        values = self._library.OrtValue
        if array.dtype == BFLOAT16:
            bits = np.ascontiguousarray(array).view(np.uint16)
            return values.ortvalue_from_numpy_with_onnx_type(bits, BFLOAT16_ELEMENT)
        return values.ortvalue_from_numpy(array)


def _optimise(plain: Path) -> None:
    """Writes model.onnx beside it, with its weights in model.weights."""
    library, folder = _library(), plain.parent
    made = library.SessionOptions()
    made.log_severity_level = ERRORS_ONLY
    made.graph_optimization_level = library.GraphOptimizationLevel.ORT_ENABLE_ALL
    made.optimized_model_filepath = str(folder / "model.onnx")
    made.add_session_config_entry(
        "session.optimized_model_external_initializers_file_name", "model.weights"
    )
    _session(library, plain, made)


def plain_session(file: Path) -> Any:
    """Of the graph as it is stored, without optimisations."""
    library = _library()
    made = library.SessionOptions()
    made.log_severity_level = ERRORS_ONLY
    made.graph_optimization_level = library.GraphOptimizationLevel.ORT_DISABLE_ALL
    return _session(library, file, made)


def _session(library: Any, file: Path, session_options: Any) -> Any:
    try:
        return library.InferenceSession(
            str(file), session_options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # the library's errors share no base class
        raise LoadError(f"ONNX Runtime cannot load the model: {error}") from error


def _spec(value: Any) -> TensorSpec:
    if value.type not in DATATYPES:
        raise LoadError(f"'{value.name}' is {value.type}, known are {', '.join(DATATYPES)}")
    sizes = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in value.shape)
    return TensorSpec(value.name, DATATYPES[value.type], sizes)


def _texts(array: Array) -> Array:
    """The library takes Python texts: byte strings must be UTF-8."""
    try:
        texts = [item.decode() for item in array.reshape(-1)]
    except UnicodeDecodeError as error:
        raise BadRows(f"a BYTES value is no UTF-8 text: {error}") from error
    made = np.empty(len(texts), object)
    made[:] = texts
    return made.reshape(array.shape)


def _taken(value: Any) -> Array:
    """A numpy array of an output; texts become byte strings again."""
    if isinstance(value, np.ndarray):
        return _bytes(value) if value.dtype.kind == "O" else value
    if value.element_type() != BFLOAT16_ELEMENT:
        return _taken(value.numpy())
    shape = tuple(value.shape())
    size = 2 * int(np.prod(shape))
    copied = ctypes.string_at(value.data_ptr(), size)
    return np.frombuffer(bytearray(copied), BFLOAT16).reshape(shape)


def _bytes(array: Array) -> Array:
    made = np.empty(array.size, object)
    made[:] = [item.encode() if isinstance(item, str) else item for item in array.reshape(-1)]
    return made.reshape(array.shape)


def _longest(source: Source) -> int | None:
    if source.kind is not SourceKind.HUGGING_FACE:
        return None
    return bert_graph.read_config(source.path).max_length


def _library() -> Any:
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise MissingBackend(
            "the onnxruntime runtime needs its package: pip install 'headrace[onnxruntime]' "
            f"({error})"
        ) from error
