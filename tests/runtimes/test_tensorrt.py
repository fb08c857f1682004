"""TensorRT without a GPU: which engine runs what, whose plans are refused, and an engine's work on
a device that stands in for one, with memory that is really copied and contexts that really add."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtimes import catalog, cuda
from runtimes.cuda import VisibleGpu
from runtimes.errors import LoadError, MissingBackend, RefusedArtifact, RunError
from runtimes.graph.dense import GraphFacts
from runtimes.tensorrt import plans as tensorrt_plans
from runtimes.tensorrt.engine import Engines, TensorRTEngine
from runtimes.tensorrt.plans import (
    FALLBACK,
    LATENCY,
    THROUGHPUT,
    Bounds,
    PlanFacts,
    chosen,
    length_ranges,
    plans,
    shape,
    shapes_of,
)
from runtimes.types import Limits, RuntimeSettings, StageTimes, TensorSpec
from runtimes.warmup import OptimizationProfile, SizeRange

IDS = TensorSpec("input_ids", "INT64", (-1, -1))
SUMS = TensorSpec("sums", "FP32", (-1,))
BOUNDS = Bounds((16, 64), max_size=8, max_tokens=256)

# ---- engines and profiles -----------------------------------------------------------------


def test_profiles_are_tuned_for_the_lengths_recorded_in_their_bucket():
    spans = length_ranges((16, 64, 128), (3, 5, 16, 40, 20))
    assert spans == (SizeRange(1, 5, 16), SizeRange(17, 30, 64), SizeRange(65, 128, 128))


def test_three_engines_cover_one_row_full_batches_and_the_rest():
    latency, throughput, fallback = plans(BOUNDS, "fp16")
    assert [plan.name for plan in (latency, throughput, fallback)] == [
        LATENCY,
        THROUGHPUT,
        FALLBACK,
    ]
    assert [plan.precision for plan in (latency, throughput, fallback)] == ["fp16", "fp16", "fp32"]
    assert {profile.rows for profile in latency.profiles} == {SizeRange(1, 1, 1)}
    assert [profile.rows.most for profile in throughput.profiles] == [8, 4]
    assert fallback.profiles == (OptimizationProfile(SizeRange(1, 4, 8), SizeRange(1, 64, 64)),)


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_in_eight_bits_no_batch_gets_another_precision(precision):
    assert {plan.precision for plan in plans(BOUNDS, precision)} == {precision}


@pytest.mark.parametrize(
    ("rows", "length", "found"),
    [
        (1, 16, (LATENCY, 0)),
        (1, 17, (LATENCY, 1)),
        (2, 16, (THROUGHPUT, 0)),
        (4, 64, (THROUGHPUT, 1)),
        (5, 64, (FALLBACK, 0)),
        (9, 1, None),
        (1, 65, None),
    ],
)
def test_first_engine_that_holds_the_batch_runs_it(rows, length, found):
    assert chosen(plans(BOUNDS, "fp16"), rows, length) == found


def test_profiles_shapes_fix_what_is_neither_rows_nor_length():
    spec = TensorSpec("x", "", (-1, -1, 7))
    profile = OptimizationProfile(SizeRange(1, 2, 3), SizeRange(4, 5, 6))
    assert shapes_of(spec, profile, 1) == [(1, 4, 7), (2, 5, 7), (3, 6, 7)]


def test_other_dynamic_axis_is_refused_with_the_inputs_name():
    with pytest.raises(LoadError, match=r"input 'x' is .*fixed axis 2"):
        shape(TensorSpec("x", "", (-1, -1, -1)), 1, 2, 3)


# ---- plans --------------------------------------------------------------------------------

H100 = VisibleGpu("NVIDIA H100", "9.0", "550.54.15")
HERE = PlanFacts.of("digest", "10.9.0", H100, "shapes")


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"gpu": "NVIDIA A100", "capability": "8.0"}, r"another GPU, NVIDIA A100 \(compute .* 8.0"),
        ({"tensorrt": "10.3.0"}, r"by TensorRT 10\.3\.0; this is 10\.9\.0"),
        ({"driver": "535.1"}, r"under driver 535\.1; this is 550"),
        ({"model": "another"}, "of another model"),
        ({"shapes": "others"}, "for other buckets"),
    ],
)
def test_plan_built_for_something_else_is_refused(tmp_path, other, sentence):
    tensorrt_plans.write(replace(HERE, **other), tmp_path)
    with pytest.raises(RefusedArtifact, match=sentence):
        tensorrt_plans.check(tmp_path, HERE)


def test_plan_of_this_machine_is_taken(tmp_path):
    tensorrt_plans.write(HERE, tmp_path)
    tensorrt_plans.check(tmp_path, HERE)


@pytest.mark.parametrize("content", ["", "{}", json.dumps([1])])
def test_folder_without_plans_says_so(tmp_path, content):
    (tmp_path / tensorrt_plans.FACTS).write_text(content)
    with pytest.raises(LoadError, match="holds no TensorRT plans"):
        tensorrt_plans.check(tmp_path, HERE)


def test_every_fact_is_in_the_key_and_timings_are_shared_between_models(tmp_path):
    for name in ("model", "tensorrt", "driver", "gpu", "capability", "shapes"):
        assert replace(HERE, **{name: "x"}).key() != HERE.key()
    file = tensorrt_plans.timing_cache(tmp_path, HERE)
    assert tensorrt_plans.timing_cache(tmp_path, replace(HERE, model="x", shapes="y")) == file
    assert tensorrt_plans.timing_cache(tmp_path, replace(HERE, gpu="x")) != file


# ---- an engine at work --------------------------------------------------------------------


class Host:
    """Stands in for a GPU's memory and stream: addresses are real, work is done at once."""

    def __init__(self) -> None:
        self.stream, self.captures, self.replays = 7, 0, 0
        self._kept: list[np.ndarray] = []
        self.closed = False

    def device(self, size: int) -> int:
        return self.host(size).ctypes.data

    def host(self, size: int) -> np.ndarray:
        self._kept.append(np.full(size, 0xAB, np.uint8))
        return self._kept[-1]

    def enter(self) -> None:
        assert not self.closed

    def copy_in(self, to: int, source: np.ndarray) -> None:
        ctypes.memmove(to, source.ctypes.data, source.nbytes)

    def copy_out(self, to: np.ndarray, source: int) -> None:
        ctypes.memmove(to.ctypes.data, source, to.nbytes)

    def wait(self) -> None:
        pass

    def captured(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1
        enqueue()

        def replay() -> None:
            self.replays += 1
            enqueue()

        return replay

    def close(self) -> None:
        self.closed = True


class Context:
    """Sums each row of `input_ids`, at the shape and addresses that it was told, within its
    profile."""

    def __init__(self, profiles: tuple[OptimizationProfile, ...]) -> None:
        self._profiles, self._at, self._addresses = profiles, 0, dict[str, int]()
        self._shape = (0, 0)

    def set_optimization_profile_async(self, number: int, stream: int) -> bool:
        self._at = number
        return number < len(self._profiles)

    def set_input_shape(self, name: str, sizes: tuple[int, int]) -> bool:
        self._shape = sizes
        return self._profiles[self._at].holds(*sizes)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (self._shape[0],)

    def set_tensor_address(self, name: str, address: int) -> None:
        self._addresses[name] = address

    def execute_async_v3(self, stream: int) -> bool:
        rows, length = self._shape
        ids = (ctypes.c_int64 * (rows * length)).from_address(self._addresses["input_ids"])
        sums = np.array(ids).reshape(rows, length).sum(1).astype(np.float32)
        ctypes.memmove(self._addresses["sums"], sums.ctypes.data, sums.nbytes)
        return stream == 7


class Opened:
    def __init__(self, profiles: tuple[OptimizationProfile, ...]) -> None:
        self._profiles = profiles
        self.contexts = 0

    def create_execution_context(self) -> Context:
        self.contexts += 1
        return Context(self._profiles)


def engine(shapes: tuple[tuple[int, int], ...] = ()) -> tuple[TensorRTEngine, Host, dict[str, Any]]:
    made, memory = plans(BOUNDS, "fp16"), Host()
    opened = {plan.name: Opened(plan.profiles) for plan in made}
    engines = Engines(made, opened, "input_ids", 1, BOUNDS.edges, shapes)
    facts = GraphFacts((IDS,), (SUMS,))
    return TensorRTEngine(engines, facts, memory, "cuda:0"), memory, opened


def run(model: TensorRTEngine, rows: int, length: int, seed: int = 0) -> None:
    ids = np.random.default_rng(seed).integers(0, 99, (rows, length))
    (sums,) = model.infer({"input_ids": ids}, ["sums"], StageTimes())
    assert sums.tolist() == ids.sum(1).tolist()


def test_each_profile_has_a_context_of_its_own():
    _, _, opened = engine()
    assert {name: each.contexts for name, each in opened.items()} == {
        LATENCY: 2,
        THROUGHPUT: 2,
        FALLBACK: 1,
    }


@pytest.mark.parametrize(("rows", "length"), [(1, 16), (1, 64), (8, 16), (3, 64), (7, 64), (2, 5)])
def test_batches_of_every_engine_answer(rows, length):
    model, _, _ = engine()
    run(model, rows, length)
    run(model, rows, length, seed=1)


def test_answers_outlive_the_next_batch():
    model, _, _ = engine()
    ids = np.ones((2, 16), np.int64)
    (kept,) = model.infer({"input_ids": ids}, ["sums"], StageTimes())
    model.infer({"input_ids": ids * 3}, ["sums"], StageTimes())
    assert kept.tolist() == [16, 16]


def test_batch_is_filled_up_to_a_captured_graph_and_replayed():
    model, memory, _ = engine(((8, 16), (1, 64)))
    assert model.prepare(Limits((IDS,), (SUMS,))) == (16, 64)
    assert memory.captures == 2
    run(model, 3, 16)
    run(model, 1, 64)
    assert memory.replays == 2
    run(model, 2, 64)  # no graph holds it
    run(model, 1, 16)  # filled up to eight rows rather than to a graph of other lengths
    assert memory.replays == 3


def test_batch_beyond_all_profiles_fails_alone():
    model, _, _ = engine()
    with pytest.raises(RunError, match="no TensorRT profile allows 9 rows of length 1"):
        model.infer({"input_ids": np.ones((9, 1), np.int64)}, ["sums"], StageTimes())
    run(model, 1, 16)


def test_memory_is_given_back():
    model, memory, _ = engine()
    model.close()
    assert memory.closed


# ---- settings -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device": "cpu"}, "tensorrt runs on GPUs alone"),
        ({"recorded_lengths": [4, 0]}, "length below 1"),
        ({"recorded_lengths": ["4"]}, "a list, each a whole number"),
        ({"plan": "x"}, "did you mean 'plans'"),
        ({"keep_fp32": ["a"]}, "tensorrt has no option 'keep_fp32'"),
    ],
)
def test_wrong_options_are_told_what_is_right(given, message):
    with pytest.raises(LoadError, match=message):
        catalog.check("tensorrt", given, "fp16")


def test_machine_without_a_gpu_is_told_so(tmp_path, monkeypatch):
    from runtimes.tensorrt import runtime as tensorrt

    monkeypatch.setattr(tensorrt, "gpus", lambda: ())
    settings = RuntimeSettings("m", "tensorrt", Path("absent"), tmp_path)
    with pytest.raises(MissingBackend, match="needs an NVIDIA GPU, and none is here"):
        tensorrt.TensorRTRuntime(settings).load()


@pytest.mark.parametrize(
    ("capability", "precision", "refused"),
    [
        ("8.6", "fp8", "NVIDIA A10 has no fp8: its compute capability is 8.6, fp8 needs 8.9"),
        ("8.9", "fp8", None),
        ("10.0", "fp8", None),
        ("7.5", "bf16", "bf16 needs 8.0 or more; set precision to fp16"),
        ("8.0", "bf16", None),
        ("7.5", "int8", None),
    ],
)
def test_precision_that_the_gpu_lacks_is_refused_with_what_it_has(capability, precision, refused):
    gpu = VisibleGpu("NVIDIA A10", capability, "580")
    if refused is None:
        cuda.check_precision(gpu, precision)
        return
    with pytest.raises(LoadError, match=refused):
        cuda.check_precision(gpu, precision)


@pytest.mark.parametrize(
    ("capability", "options", "message"),
    [
        ("8.6", {"calibration": "recorded"}, "has no fp8"),
        ("9.0", {}, "precision fp8 needs the option calibration"),
    ],
)
def test_what_cannot_be_built_is_refused_before_anything_is_staged(
    tmp_path, monkeypatch, capability, options, message
):
    from runtimes.tensorrt import runtime as tensorrt

    monkeypatch.setattr(tensorrt, "gpus", lambda: (VisibleGpu("A10", capability, "580"),))
    settings = RuntimeSettings(
        "m", "tensorrt", Path("absent"), tmp_path, precision="fp8", options=options
    )
    with pytest.raises(LoadError, match=message):
        tensorrt.TensorRTRuntime(settings).load()
    assert not list(tmp_path.iterdir())
