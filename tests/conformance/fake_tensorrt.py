"""TensorRT without a GPU: a library that has the names of TensorRT 11's bindings and no others.

What the backend may call is here; anything else is an AttributeError, as with the real bindings
(`tensorrt_names.json`, which tests/runtimes/test_tensorrt_names.py holds against the wheel). The
parser takes standard operators alone and checks all types. An engine computes in the types of its
graph, on the processors. Memory is real, so that addresses and sizes matter.

It refuses what TensorRT refuses: shapes outside the profile, a profile without each dynamic input,
an input without an address. It knows nothing of speed, and of what only the real parser cannot do.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import json
import math
from collections.abc import Callable
from enum import IntEnum
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, Any]
Shapes = dict[str, list[tuple[int, ...]]]  # least, typical, most by input
_NUMPY = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16}


class NetworkDefinitionCreationFlag(IntEnum):
    STRONGLY_TYPED = 1


class BuilderFlag(IntEnum):
    TF32 = 7


class Logger:
    ERROR = 1

    def __init__(self, severity: int) -> None:
        assert severity == Logger.ERROR


class _Tensor:
    def __init__(self, value: Any) -> None:
        self.name = value.name
        sizes = value.type.tensor_type.shape.dim
        self.shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in sizes)


class _Network:
    def __init__(self, flags: int) -> None:
        assert flags == 1 << NetworkDefinitionCreationFlag.STRONGLY_TYPED
        self._model: Any = None

    @property
    def num_inputs(self) -> int:
        return len(self._model.graph.input)

    def get_input(self, at: int) -> _Tensor:
        return _Tensor(self._model.graph.input[at])


class OnnxParser:
    def __init__(self, network: _Network, logger: Logger) -> None:
        self._network, self._errors = network, list[str]()

    def parse_from_file(self, path: str) -> bool:
        model = onnx.load(path)
        own = {node.op_type for node in model.graph.node if node.domain not in ("", "ai.onnx")}
        if own:
            self._errors.append(f"no importer for {', '.join(sorted(own))}")
            return False
        onnx.checker.check_model(model, full_check=True)
        self._network._model = model
        return True

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, at: int) -> str:
        return self._errors[at]


class _Profile:
    def __init__(self) -> None:
        self._shapes: Shapes = {}

    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
        three = [tuple(shape) for shape in (min, opt, max)]
        assert all(a <= b <= c for a, b, c in zip(*three, strict=True)), three
        self._shapes[input] = three


class _TimingCache:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def serialize(self) -> bytes:
        return self._content + b"."


class _Config:
    def __init__(self) -> None:
        self._flags, self._profiles = {BuilderFlag.TF32}, list[_Profile]()

    def clear_flag(self, flag: BuilderFlag) -> None:
        self._flags.remove(flag)

    def add_optimization_profile(self, profile: _Profile) -> int:
        self._profiles.append(profile)
        return len(self._profiles) - 1

    def create_timing_cache(self, content: bytes) -> _TimingCache:
        return _TimingCache(content)

    def set_timing_cache(self, cache: _TimingCache, ignore_mismatch: bool) -> bool:
        self._cache = cache
        return True

    def get_timing_cache(self) -> _TimingCache:
        return self._cache


class Builder:
    def __init__(self, logger: Logger) -> None:
        pass

    def create_network(self, flags: int) -> _Network:
        return _Network(flags)

    def create_builder_config(self) -> _Config:
        return _Config()

    def create_optimization_profile(self) -> _Profile:
        return _Profile()

    def build_serialized_network(self, network: _Network, config: _Config) -> bytes | None:
        free = {
            value.name for value in map(_Tensor, network._model.graph.input) if -1 in value.shape
        }
        shapes = [profile._shapes for profile in config._profiles]
        if any(free - set(each) for each in shapes) or BuilderFlag.TF32 in config._flags:
            return None
        return json.dumps(shapes).encode() + b"\n" + network._model.SerializeToString()


class Runtime:
    def __init__(self, logger: Logger) -> None:
        pass

    def deserialize_cuda_engine(self, plan: bytes) -> _Engine | None:
        head, _, model = plan.partition(b"\n")
        return _Engine(json.loads(head), onnx.load_model_from_string(model)) if model else None


class _Engine:
    def __init__(self, profiles: list[Shapes], model: Any) -> None:
        self._profiles, self._inputs = profiles, {v.name: v for v in model.graph.input}
        self._outputs = [value.name for value in model.graph.output]
        self._types = {v.name: v.type.tensor_type.elem_type
                       for v in (*model.graph.input, *model.graph.output)}  # fmt: skip
        # ONNX Runtime has no bfloat16 on processors; onnx's own evaluator has.
        weights = {weight.data_type for weight in model.graph.initializer}
        if onnx.TensorProto.BFLOAT16 in weights:
            evaluator = ReferenceEvaluator(model)
            self._compute = lambda feeds: evaluator.run(None, feeds)
        else:
            plain = onnxruntime.SessionOptions()  # unoptimised: it would fuse fp8 as if it was int8
            plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            session = onnxruntime.InferenceSession(model.SerializeToString(), plain)
            self._compute = lambda feeds: session.run(None, feeds)

    def create_execution_context(self) -> _Context:
        return _Context(self)


class _Context:
    def __init__(self, engine: _Engine) -> None:
        self._engine, self._profile = engine, engine._profiles[0]
        self._shapes, self._addresses = dict[str, tuple[int, ...]](), dict[str, int]()
        self._found: dict[str, tuple[int, ...]] = {}

    def set_optimization_profile_async(self, number: int, stream: int) -> bool:
        self._profile = self._engine._profiles[number]
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least, _, most = self._profile[name]
        inside = all(a <= b <= c for a, b, c in zip(least, shape, most, strict=True))
        self._shapes[name] = shape
        self._found = {}
        return inside

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if not self._found:
            zeros = {n: np.zeros(s, self._type(n)) for n, s in self._shapes.items()}
            outputs = self._engine._compute(zeros)
            pairs = zip(self._engine._outputs, outputs, strict=True)
            self._found = {output: array.shape for output, array in pairs}
        return self._shapes.get(name) or self._found[name]

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        shapes, addresses = dict(self._shapes), dict(self._addresses)

        def work() -> None:
            feeds = {name: self._read(name, shape, addresses) for name, shape in shapes.items()}
            found = zip(self._engine._outputs, self._engine._compute(feeds), strict=True)
            for name, array in found:
                content = np.ascontiguousarray(array)
                ctypes.memmove(addresses[name], content.ctypes.data, content.nbytes)

        Memory.do(work)
        return True

    def _type(self, name: str) -> Any:
        return _NUMPY[self._engine._types[name]]

    def _read(self, name: str, shape: tuple[int, ...], addresses: dict[str, int]) -> Array:
        size = math.prod(shape) * np.dtype(self._type(name)).itemsize
        raw = (ctypes.c_uint8 * size).from_address(addresses[name])
        return np.frombuffer(bytes(raw), self._type(name)).reshape(shape)


class Memory:
    """`runtimes.cuda.CudaMemory` on the host, of which nothing is zero at first. What is
    put on the stream runs at once; while it is captured it is kept instead, with the shapes and
    addresses of that moment."""

    _capturing: ClassVar[list[Callable[[], None]] | None] = None

    @classmethod
    def do(cls, work: Callable[[], None]) -> None:
        work() if cls._capturing is None else cls._capturing.append(work)

    def __init__(self, index: int) -> None:
        self.stream, self._kept = 7, list[Array]()

    def enter(self) -> None:
        pass

    def device(self, size: int) -> int:
        return int(self.host(size).ctypes.data)

    def host(self, size: int) -> Array:
        self._kept.append(np.full(max(1, size), 0xAB, np.uint8))
        return self._kept[-1]

    def copy_in(self, to: int, source: Array) -> None:
        ctypes.memmove(to, source.ctypes.data, source.nbytes)

    def copy_out(self, to: Array, source: int) -> None:
        ctypes.memmove(to.ctypes.data, source, to.nbytes)

    def wait(self) -> None:
        pass

    def captured(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        kept: list[Callable[[], None]] = []
        Memory._capturing = kept
        try:
            enqueue()
        finally:
            Memory._capturing = None
        return lambda: [work() for work in kept] and None

    def close(self) -> None:
        self._kept.clear()


PUBLIC = (NetworkDefinitionCreationFlag, BuilderFlag, Logger, OnnxParser, Builder, Runtime)
INNER = (_Tensor, _Network, _Profile, _TimingCache, _Config, _Engine, _Context)


def library() -> ModuleType:
    """The module `tensorrt`, with nothing in it but what is above."""
    made = ModuleType("tensorrt")
    made.__spec__ = importlib.machinery.ModuleSpec("tensorrt", None)
    made.__version__ = "11.4.0.106"  # type: ignore[attr-defined]
    for each in PUBLIC:
        setattr(made, each.__name__, each)
    return made


def names() -> set[str]:
    """Everything that the backend can call without an AttributeError."""
    found = {"__version__", "name", "shape"} | {each.__name__ for each in PUBLIC}
    for each in (*PUBLIC, *INNER):
        found |= {name for name in vars(each) if not name.startswith("_")}
    return found
