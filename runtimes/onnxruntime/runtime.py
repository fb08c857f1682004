"""A model on ONNX Runtime, on the processors or on a GPU.

For the processors it is optimised once a host: the optimised graph is stored, with weights beside
it, and replicas load that without optimising again; it holds code choices for the processor, so the
processor is in its key. For a GPU the graph is stored as it is and optimised where it is loaded;
TensorRT's engines are kept beside it. One batch at a time, its operators in turn, each over as many
threads as the control group allows.

Precision is the graph's own, fp32 for what is built here, fp16 on a GPU: the CPU provider has no
arithmetic in half precision. Its CUDA provider has no products of eight bits, so int8 and fp8 on a
GPU are TensorRT's, which takes them from the graph. Source: ONNX Runtime's documentation of graph
optimisation, of execution providers and of I/O binding.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import ml_dtypes
import numpy as np

from runtimes import calibration, cuda, options, staging
from runtimes.errors import BadRows, LoadError, MissingBackend, failed
from runtimes.graph.dense import GraphFacts
from runtimes.graph.runtime import Engine, GraphRuntime
from runtimes.onnx import explicit_quantization, precision
from runtimes.onnx import model as onnx_model
from runtimes.onnx import session as onnxruntime_session
from runtimes.onnx.session import CUDA, TENSORRT, ONNXRuntimeOptions, Provider
from runtimes.options import Device
from runtimes.source import Source
from runtimes.types import DTYPES, Limits, RuntimeSettings, StageTimes, TensorSpec
from runtimes.warmup import OptimizationProfile, SizeRange

Array = np.ndarray[Any, Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BFLOAT16_ELEMENT = 16  # TensorProto.BFLOAT16
LAYOUT = "5"  # of a staged entry; raised when what is built for the same inputs changes
FACTS = "facts.json"
_OWN_WORDS = {
    "FP16": "float16", "BF16": "bfloat16", "FP32": "float", "FP64": "double", "BYTES": "string",
}  # fmt: skip
DATATYPES = {f"tensor({_OWN_WORDS.get(name, name.lower())})": name for name in DTYPES}


class ONNXRuntimeRuntime(GraphRuntime):
    """`runtimes.types.Runtime` on ONNX Runtime."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._own_options = options.parse(ONNXRuntimeOptions, settings.options)
        super().__init__(settings, self._own_options)

    def _open(self) -> Engine:
        settings, library = self._settings, onnxruntime_session.library()
        place = self._place(library)
        calibration.check(settings.precision, self._options)
        source = self._source()
        settings.progress("staging", 0.0)
        entry = self._staged(source, place)
        settings.progress("staging", 1.0)
        settings.progress("compiling", 0.0)
        engine = ONNXRuntimeEngine(library, entry, self._opening(library, entry, place))
        settings.progress("compiling", 1.0)
        return engine

    def graph(self) -> Any:
        """The `ModelProto` before the library's optimisations, weights in memory."""
        source = self._source()
        if self._settings.precision in calibration.PRECISIONS:
            place = self._place(onnxruntime_session.library())
            file = "model.onnx" if place.is_cuda else precision.FILE
            return onnx_model.load(self._staged(source, place) / file)
        return self._read(source)

    def _staged(self, source: Source, place: Device) -> Path:
        parts, build = self._parts(source, place), self._stage(source, place)
        return staging.staged(self._settings.cache_dir, parts, build)

    def _stage(self, source: Source, place: Device) -> Callable[[Path], None]:
        def build(folder: Path) -> None:
            model = self._read(source)
            inputs = model.graph.input
            facts = {
                "id_bounds": onnx_model.id_bounds(model),
                "max_length": source.longest,
                "inputs": [(name, sizes) for name, _, sizes in onnx_model.specs(inputs, model)],
            }
            (folder / FACTS).write_text(json.dumps(facts))
            if place.is_cuda:
                onnx_model.save(self._for_gpu(model, folder), folder / "model.onnx")
                return
            if self._settings.precision == "int8":
                onnxruntime_session.optimise(
                    precision.build(model, folder, self._settings, self._options)
                )
                return
            onnx_model.save(model, folder / "plain.onnx")
            onnxruntime_session.optimise(folder / "plain.onnx")
            for file in folder.glob("plain.*"):
                file.unlink()

        return build

    def _read(self, source: Source) -> Any:
        """TensorRT knows none of the library's own operators: each would end an engine."""
        standard = self._own_options.tensorrt_engines
        return onnx_model.read(source, self._settings, self._options, standard=standard)

    def _for_gpu(self, model: Any, folder: Path) -> Any:
        wanted = self._settings.precision
        if wanted in calibration.PRECISIONS:
            return explicit_quantization.quantised(model, folder, self._settings, self._options)
        return onnx_model.halved(model, self._options.keep_fp32) if wanted == "fp16" else model

    def _parts(self, source: Source, place: Device) -> list[str]:
        graph = self._graph_key(source)
        version, task = str(onnxruntime_session.library().__version__), self._settings.task
        parts = [source.digest, "onnxruntime", LAYOUT, version, task, graph, staging.processor()]
        if place.is_cuda:
            parts += [str(cuda.gpus()[place.index]), self._settings.precision]
            parts.append("tensorrt" if self._own_options.tensorrt_engines else "cuda")
        return parts

    def _place(self, library: Any) -> Device:
        """Raises `LoadError` for a device or a precision that is not there."""
        chosen, precision = self._own_options, self._settings.precision
        able = library.get_available_providers()
        built_for_gpus = CUDA in able
        if built_for_gpus and chosen.device != "cpu":
            cuda.require("onnxruntime-gpu")
        gpus = cuda.gpus() if built_for_gpus else ()
        place = options.chosen_device(chosen.device, len(gpus), "onnxruntime")
        if place.is_cuda:
            total = gpus[place.index].memory_bytes
            options.check_gpu_has(chosen.gpu_memory_mib, total, place)
        if chosen.tensorrt_engines and (not place.is_cuda or TENSORRT not in able):
            raise MissingBackend(
                "option 'tensorrt_engines' is true, but onnxruntime sees no TensorRT: it needs a "
                "GPU, onnxruntime-gpu and TensorRT's libraries; or set it to false"
            )
        unfit = chosen.unfit(precision, str(place))
        if unfit:
            raise LoadError(unfit)
        if place.is_cuda:
            cuda.check_precision(cuda.gpus()[place.index], precision)
        able_to = ("fp32", "fp16") if place.is_cuda else ("fp32", "int8")
        if precision not in (*able_to, *calibration.PRECISIONS):
            raise LoadError(
                f"onnxruntime has no {precision} on {place}: set precision to "
                f"{' or '.join(able_to)}, or use openvino or torch for bf16"
            )
        return place

    def _opening(self, library: Any, entry: Path, place: Device) -> Opening:
        chosen, settings = self._own_options, self._settings
        stored = json.loads((entry / FACTS).read_text())
        inputs = [TensorSpec(name, "", tuple(shape)) for name, shape in stored["inputs"]]
        longest = settings.max_length or stored["max_length"] or max(settings.edges, default=1)
        usual = min(longest, max(settings.edges[: len(settings.edges) // 2 + 1], default=longest))
        profile = onnxruntime_session.profile_options(
            inputs,
            settings.length_axis or 1,
            OptimizationProfile(
                SizeRange(1, settings.max_size, settings.max_size), SizeRange(1, usual, longest)
            ),
        )
        if place.is_cuda:
            onnxruntime_session.preload(library, chosen.tensorrt_engines)
        engines = entry / "engines"
        if chosen.tensorrt_engines:
            engines.mkdir(exist_ok=True)
        return Opening(
            onnxruntime_session.session_options(
                library, chosen, self._threads(), not place.is_cuda
            ),
            onnxruntime_session.providers(chosen, place, engines, profile),
            onnxruntime_session.run_options(library, chosen, place),
            chosen.io_binding or place.is_cuda,
            str(place),
        )


@dataclass(frozen=True, slots=True)
class Opening:
    """How a session is opened and run; `device` as `Limits` names it."""

    session: Any
    providers: list[Provider]
    run: Any
    io_binding: bool
    device: str = "cpu"


class ONNXRuntimeEngine:
    """`Engine` around one session over a staged folder."""

    platform = "onnxruntime_onnx"

    def __init__(self, library: Any, entry: Path, opening: Opening) -> None:
        self._library, self._opening = library, opening
        self.device = opening.device
        self._session: Any = onnxruntime_session.opened(
            entry / "model.onnx", opening.session, opening.providers
        )
        stored = json.loads((entry / FACTS).read_text())
        del stored["inputs"]
        self.facts = GraphFacts(
            inputs=tuple(map(_spec, self._session.get_inputs())),
            outputs=tuple(map(_spec, self._session.get_outputs())),
            **stored,
        )
        specs = (*self.facts.inputs, *self.facts.outputs)
        # numpy has no bfloat16 of its own, so the library's short way in and out does not take it
        self._has_bf16 = any(spec.datatype == "BF16" for spec in specs)
        # texts are Python objects, which have no memory to bind
        texts = any(spec.datatype == "BYTES" for spec in specs)
        self._binds = opening.io_binding and not texts

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
        try:
            if self._binds:
                return self._run_bound(feeds, outputs)
            session = self._session
            run = session.run_with_ort_values if self._has_bf16 else session.run
            return list(run(list(outputs), feeds, self._opening.run))
        except Exception as error:  # the library's errors share no base class
            raise failed(f"ONNX Runtime: {error}", error) from error

    def _run_bound(self, feeds: dict[str, Any], outputs: Sequence[str]) -> list[Any]:
        """Inputs are read where they lie and copied to the device on the way, outputs come to the
        processors' memory at once."""
        binding = self._session.io_binding()
        for name, value in feeds.items():
            if isinstance(value, np.ndarray):
                value = self._library.OrtValue.ortvalue_from_numpy(value)
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding, self._opening.run)
        return list(binding.get_outputs())

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
        if value.dtype.kind != "O":
            return value
        made = np.empty(value.size, object)
        made[:] = [text.encode() if isinstance(text, str) else text for text in value.reshape(-1)]
        return made.reshape(value.shape)
    if value.element_type() != BFLOAT16_ELEMENT:
        return _taken(value.numpy())
    shape = tuple(value.shape())
    size = 2 * int(np.prod(shape))
    copied = ctypes.string_at(value.data_ptr(), size)
    return np.frombuffer(bytearray(copied), BFLOAT16).reshape(shape)
