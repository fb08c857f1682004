"""What every backend must do, run over each backend with every kind of source it takes.

A backend whose package is missing is skipped with the sentence that says what to install. Rows are
compared with themselves alone (1e-5), so that batching, padding and order are proved by values.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtimes import catalog
from runtimes.datatypes import DTYPES
from runtimes.errors import BadRows, LoadError, RefusedArtifact, RuntimeFault
from runtimes.types import Batch, Limits, Ragged, Result, Runtime, RuntimeSettings, TensorSpec

MAX_SIZE, LONGEST, TOLERANCE = 8, 64, 1e-5
LENGTHS = (3, 1, 17, LONGEST, 2)


@dataclass(frozen=True)
class Case:
    """`source` is a name that the fixture `sources` knows, None for a backend without one."""

    runtime: str
    source: str | None
    task: str = "tensors"
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.runtime}-{self.source}-{self.task}"


TEXTS = (
    Case("synthetic", None, options={"base_ms": 0}),
    Case("onnxruntime", "bert", "embed"),
    Case("onnxruntime", "bert"),
    Case("onnxruntime", "bert", "classify"),
    Case("openvino", "bert", "embed"),
    Case("openvino", "bert"),
    Case("openvino", "bert", "classify"),
    Case("torch", "bert", "embed"),
    Case("torch", "bert"),
    Case("torch", "bert", "classify"),
    Case("torch", "text.pt2"),
)
STACKED = (
    Case("onnxruntime", "image.onnx"),
    Case("onnxruntime", "pair.onnx"),
    Case("onnxruntime", "text.onnx"),
    Case("openvino", "image.onnx"),
    Case("openvino", "pair.onnx"),
    Case("openvino", "pair.xml"),
    Case("torch", "pair.pt2"),
)
ONE_EACH = (TEXTS[0], TEXTS[1], TEXTS[4], TEXTS[7])
FROM_FILES = ONE_EACH[1:]
Sources = Callable[[str], Path]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, sources: Sources, cache: Path) -> Iterator[Runtime]:
    """The case's backend, loaded and warm, shared by the tests that leave it as they found it."""
    runtime = create(settings(request.param, sources, cache))
    runtime.load()
    runtime.warm()
    yield runtime
    runtime.close()


texts = pytest.mark.parametrize("running", TEXTS, ids=str, indirect=True, scope="module")
stacked = pytest.mark.parametrize("running", STACKED, ids=str, indirect=True, scope="module")
everything = pytest.mark.parametrize(
    "running", TEXTS + STACKED, ids=str, indirect=True, scope="module"
)


def settings(case: Case, sources: Sources, cache: Path, **fields: Any) -> RuntimeSettings:
    missing = catalog.available(case.runtime)
    if missing:
        pytest.skip(missing)
    return RuntimeSettings(
        name="tiny",
        runtime=case.runtime,
        source=sources(case.source) if case.source else None,
        cache_dir=cache,
        task=case.task,
        options=case.options,
        **{"threads": 1, "edges": (8, LONGEST), "max_size": MAX_SIZE, "max_tokens": 256, **fields},
    )


def create(chosen: RuntimeSettings) -> Runtime:
    return catalog.create(chosen)


def batch_of(limits: Limits, lengths: tuple[int, ...], seed: int = 0) -> Batch:
    """Rows with values of their own: row r is the same whatever batch of that seed it stands in."""
    needed = [spec for spec in limits.inputs if spec.name not in limits.optional_inputs]
    inputs = {spec.name: _ragged(spec, limits, lengths, seed) for spec in needed}
    return Batch(len(lengths), np.array(lengths, np.int64), inputs)


def _ragged(spec: TensorSpec, limits: Limits, lengths: tuple[int, ...], seed: int) -> Ragged:
    rows = []
    for row, length in enumerate(lengths):
        # Python hashes texts anew in every process, so the name enters by its bytes.
        random = np.random.default_rng([seed, row, *spec.name.encode()])
        shape = tuple(size if size >= 0 else length for size in spec.shape[1:])
        rows.append(_values(spec.datatype, shape, random))
    data = np.concatenate([values.reshape(-1) for values in rows])
    return Ragged(spec.datatype, data, tuple(values.shape for values in rows))


def _values(datatype: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    if datatype == "BYTES":
        values = np.empty(shape, dtype=object)
        values[...] = b"row \xc3\xa9 %d" % random.integers(1000)
        return values
    if datatype.startswith("INT"):
        return random.integers(1, 90, shape).astype(DTYPES[datatype])
    return random.normal(size=shape).astype(DTYPES[datatype])


def row_of(batch: Batch, row: int) -> Batch:
    inputs = {name: _one(ragged, row) for name, ragged in batch.inputs.items()}
    return Batch(1, batch.lengths[row : row + 1], inputs, batch.outputs)


def _one(ragged: Ragged, row: int) -> Ragged:
    start = sum(math.prod(shape) for shape in ragged.shapes[:row])
    end = start + math.prod(ragged.shapes[row])
    return Ragged(ragged.datatype, ragged.data[start:end], (ragged.shapes[row],))


def assert_same_rows(together: Result, alone: list[Result]) -> None:
    for name, ragged in together.outputs.items():
        assert len(ragged.shapes) == len(alone)
        for row, single in enumerate(alone):
            mine, own = _one(ragged, row), single.outputs[name]
            assert mine.shapes == own.shapes
            assert_close(mine.data, own.data)


def assert_close(left: np.ndarray, right: np.ndarray) -> None:
    if left.dtype == object:
        assert left.tolist() == right.tolist()
    else:
        np.testing.assert_allclose(left, right, rtol=TOLERANCE, atol=TOLERANCE)


# ---- answers ------------------------------------------------------------------------------


@texts
def test_ragged_batch_answers_each_row_as_if_alone(running):
    batch = batch_of(running.limits(), LENGTHS)
    alone = [running.run(row_of(batch, row)) for row in range(len(LENGTHS))]
    assert_same_rows(running.run(batch), alone)


@stacked
def test_stacked_rows_answer_each_as_if_alone(running):
    batch = batch_of(running.limits(), (1,) * 3)
    alone = [running.run(row_of(batch, row)) for row in range(3)]
    assert_same_rows(running.run(batch), alone)


@everything
def test_different_rows_have_different_answers(running):
    """Without this, a backend that answers constants would pass the comparison with itself."""
    result = running.run(batch_of(running.limits(), (5,) * 4))
    for ragged in result.outputs.values():
        rows = {tuple(_one(ragged, row).data.tolist()) for row in range(4)}
        assert len(rows) == 4


@everything
@pytest.mark.parametrize("rows", [1, 2, MAX_SIZE])
def test_batches_of_every_size_answer_every_row(running, rows):
    result = running.run(batch_of(running.limits(), (4,) * rows))
    for ragged in result.outputs.values():
        assert len(ragged.shapes) == rows
        assert sum(map(math.prod, ragged.shapes)) == ragged.data.size


@texts
@pytest.mark.parametrize("length", [1, 2, LONGEST])
def test_rows_of_every_length_answer(running, length):
    result = running.run(batch_of(running.limits(), (length, 1)))
    assert result.padded_tokens == 2 * length
    for ragged in result.outputs.values():
        assert np.isfinite(ragged.data).all()


@everything
def test_outputs_are_as_declared(running):
    limits = running.limits()
    result = running.run(batch_of(limits, (3, 2)))
    assert set(result.outputs) == {spec.name for spec in limits.outputs}
    for spec in limits.outputs:
        ragged = result.outputs[spec.name]
        assert ragged.datatype == spec.datatype
        assert ragged.data.dtype == DTYPES[spec.datatype]
        assert ragged.data.ndim == 1
        for shape in ragged.shapes:
            assert len(shape) == len(spec.shape) - 1
            assert all(want in (-1, size) for size, want in zip(shape, spec.shape[1:], strict=True))


@texts
def test_outputs_that_follow_the_length_are_cut_to_it(running):
    limits = running.limits()
    result = running.run(batch_of(limits, LENGTHS))
    for spec in limits.outputs:
        if spec.shape[1:2] == (-1,):
            assert [shape[0] for shape in result.outputs[spec.name].shapes] == list(LENGTHS)


@everything
def test_only_the_outputs_asked_for_come_back(running):
    limits = running.limits()
    for spec in limits.outputs:
        asked = replace(batch_of(limits, (2, 1)), outputs=(spec.name,))
        assert list(running.run(asked).outputs) == [spec.name]


@texts
def test_mask_that_is_left_out_is_all_real_tokens(running):
    limits = running.limits()
    if limits.mask_input is None:
        pytest.skip("the model has no mask")
    without = batch_of(limits, LENGTHS)
    ones = Ragged("INT64", np.ones(sum(LENGTHS), np.int64), tuple((n,) for n in LENGTHS))
    given = replace(without, inputs={**without.inputs, limits.mask_input: ones})
    with_mask, made = running.run(given), running.run(without)
    for name, ragged in made.outputs.items():
        assert_close(ragged.data, with_mask.outputs[name].data)


@texts
def test_same_batch_gives_the_same_answer_twice(running):
    batch = batch_of(running.limits(), LENGTHS)
    first, second = running.run(batch), running.run(batch)
    for name, ragged in first.outputs.items():
        assert_close(ragged.data, second.outputs[name].data)


@everything
def test_answers_outlive_the_next_batch(running):
    """A backend that hands out its own buffers would let the next batch write over an answer."""
    limits = running.limits()
    kept = running.run(batch_of(limits, (4, 4), seed=1))
    before = {name: ragged.data.copy() for name, ragged in kept.outputs.items()}
    running.run(batch_of(limits, (4, 4), seed=2))
    for name, ragged in kept.outputs.items():
        assert ragged.data.tolist() == before[name].tolist()


@everything
def test_read_only_input_is_left_alone(running):
    batch = batch_of(running.limits(), (4, 2))
    for ragged in batch.inputs.values():
        ragged.data.flags.writeable = False
    running.run(batch)


# ---- bad rows -----------------------------------------------------------------------------


def _first(batch: Batch) -> tuple[str, Ragged]:
    return next(iter(batch.inputs.items()))


def _with(batch: Batch, name: str, ragged: Ragged) -> Batch:
    return replace(batch, inputs={**batch.inputs, name: ragged})


def unknown_input(batch: Batch) -> Batch:
    return _with(batch, "no_such_input", _first(batch)[1])


def missing_input(batch: Batch) -> Batch:
    name, _ = _first(batch)
    return replace(batch, inputs={key: rows for key, rows in batch.inputs.items() if key != name})


def wrong_datatype(batch: Batch) -> Batch:
    name, ragged = _first(batch)
    return _with(batch, name, Ragged("INT32", np.zeros(ragged.data.size, np.int32), ragged.shapes))


def wrong_rank(batch: Batch) -> Batch:
    name, ragged = _first(batch)
    shapes = tuple((*shape, 1) for shape in ragged.shapes)
    return _with(batch, name, Ragged(ragged.datatype, ragged.data, shapes))


def unknown_output(batch: Batch) -> Batch:
    return replace(batch, outputs=("no_such_output",))


@everything
@pytest.mark.parametrize(
    "spoil",
    [unknown_input, missing_input, wrong_datatype, wrong_rank, unknown_output],
    ids=lambda spoil: spoil.__name__,
)
def test_bad_rows_are_refused_and_the_next_batch_is_fine(running, spoil):
    batch = batch_of(running.limits(), (3, 2))
    good = running.run(batch)
    with pytest.raises(BadRows):
        running.run(spoil(batch))
    after = running.run(batch)
    for name, ragged in good.outputs.items():
        assert_close(ragged.data, after.outputs[name].data)


@texts
@pytest.mark.parametrize("token", [-1, 100, 1 << 40])
def test_token_outside_the_vocabulary_is_the_callers_fault(running, token):
    limits = running.limits()
    if limits.platform == "headrace_synthetic":
        pytest.skip("the synthetic device takes every id")
    batch = batch_of(limits, (3, 2))
    name, ragged = _first(batch)
    spoiled = ragged.data.copy()
    spoiled[1] = token
    with pytest.raises(BadRows):
        running.run(_with(batch, name, replace(ragged, data=spoiled)))
    running.run(batch)


@texts
def test_row_over_the_longest_is_the_callers_fault(running):
    limits = running.limits()
    if limits.max_length is None:
        pytest.skip("the model takes any length")
    running.run(batch_of(limits, (limits.max_length,)))
    with pytest.raises(BadRows):
        running.run(batch_of(limits, (limits.max_length + 1,)))


@stacked
def test_rows_of_different_shapes_do_not_stack(running):
    batch = batch_of(running.limits(), (1, 1))
    name, ragged = _first(batch)
    shape = ragged.shapes[0]
    uneven = (*shape[:-1], shape[-1] + 1) if shape else (1,)
    data = np.concatenate([ragged.data[: math.prod(shape)]] * 3)[: math.prod(shape) * 2]
    with pytest.raises(BadRows):
        running.run(_with(batch, name, Ragged(ragged.datatype, data, (shape, uneven))))
    running.run(batch)


# ---- declarations, health, times ----------------------------------------------------------


@everything
def test_limits_stay_what_they_were(running):
    before = running.limits()
    running.run(batch_of(before, (2,)))
    assert running.limits() == before
    assert before.platform
    assert before.length_input is None or before.length_input in {s.name for s in before.inputs}


@everything
def test_loaded_backend_is_healthy(running):
    running.health()


@everything
def test_stage_times_fit_into_the_wall_time(running):
    batch = batch_of(running.limits(), (8,) * MAX_SIZE)
    start = time.perf_counter()
    times = running.run(batch).times
    wall = time.perf_counter() - start
    stages = (times.pad_s, times.copy_in_s, times.run_s, times.copy_out_s, times.post_s)
    assert all(stage >= 0 for stage in stages)
    assert times.run_s > 0
    assert sum(stages) <= wall


# ---- starting and ending ------------------------------------------------------------------

each_backend = pytest.mark.parametrize("case", ONE_EACH, ids=str)
each_from_files = pytest.mark.parametrize("case", FROM_FILES, ids=str)


@each_backend
def test_closing_twice_is_fine_and_running_after_it_is_not(case, sources, cache):
    runtime = create(settings(case, sources, cache))
    runtime.load()
    batch = batch_of(runtime.limits(), (2,))
    runtime.run(batch)
    runtime.close()
    runtime.close()
    with pytest.raises(RuntimeFault):
        runtime.run(batch)
    with pytest.raises(RuntimeFault):
        runtime.health()


@each_backend
def test_start_tells_its_progress(case, sources, cache):
    told: list[tuple[str, float]] = []
    runtime = create(settings(case, sources, cache, progress=lambda *step: told.append(step)))
    runtime.load()
    runtime.warm()
    runtime.close()
    assert {phase for phase, _ in told} >= {"staging", "warming"}
    assert {phase for phase, _ in told} <= {"staging", "compiling", "warming"}
    assert all(0 <= fraction <= 1 for _, fraction in told)
    assert told[-1] == ("warming", 1.0)


@each_backend
def test_unknown_option_is_a_load_error_that_names_it(case, sources, cache):
    spoiled = replace(settings(case, sources, cache), options={"no_such_option": 1})
    with pytest.raises(LoadError, match="no_such_option"):
        create(spoiled)


@each_backend
def test_unknown_precision_is_a_load_error_that_names_it(case, sources, cache):
    with pytest.raises(LoadError, match="fp3"):
        create(replace(settings(case, sources, cache), precision="fp3"))


@each_from_files
def test_missing_source_is_a_load_error_that_names_the_path(case, sources, cache, tmp_path):
    absent = tmp_path / "absent.onnx"
    runtime = create(replace(settings(case, sources, cache), source=absent))
    with pytest.raises(LoadError, match=r"absent\.onnx"):
        runtime.load()


@each_from_files
def test_pickles_are_refused_unopened(case, sources, cache, tmp_path):
    marker = tmp_path / "executed"
    pickled = tmp_path / "model.pt"
    pickled.write_bytes(b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR.")
    runtime = create(replace(settings(case, sources, cache), source=pickled))
    with pytest.raises(RefusedArtifact):
        runtime.load()
    assert not marker.exists()


@each_from_files
def test_second_load_finds_everything_staged(case, sources, tmp_path):
    chosen = settings(case, sources, tmp_path / "cache")
    first = _answer_and_close(chosen)
    stamps = _stamps(tmp_path / "cache")
    assert stamps
    second = _answer_and_close(chosen)
    assert _stamps(tmp_path / "cache") == stamps
    for name, ragged in first.outputs.items():
        assert_close(ragged.data, second.outputs[name].data)


def _answer_and_close(chosen: RuntimeSettings) -> Result:
    runtime = create(chosen)
    runtime.load()
    result = runtime.run(batch_of(runtime.limits(), LENGTHS))
    runtime.close()
    return result


def _stamps(folder: Path) -> dict[str, int]:
    """Modification times of what is staged; lock files carry no content."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.suffix != ".lock")
    return {str(file): file.stat().st_mtime_ns for file in files}


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_one_thread_means_one_processor_busy(runtime, sources, cache):
    if (os.cpu_count() or 1) < 2:
        pytest.skip("one processor cannot show a second thread")
    chosen = settings(Case(runtime, "heavy.onnx"), sources, cache, max_size=256)
    backend = create(chosen)
    backend.load()
    batch = batch_of(backend.limits(), (1,) * 256)
    backend.run(batch)
    wall, busy = time.perf_counter(), time.process_time()
    for _ in range(10):
        backend.run(batch)
    wall, busy = time.perf_counter() - wall, time.process_time() - busy
    backend.close()
    assert busy < 1.3 * wall


@pytest.mark.parametrize("threads", [1, 2])
def test_torch_uses_the_threads_it_is_given(threads, sources, cache):
    backend = create(settings(TEXTS[7], sources, cache, threads=threads))
    backend.load()
    import torch

    assert torch.get_num_threads() == threads
    backend.close()


# ---- agreement between backends -----------------------------------------------------------


@pytest.mark.parametrize("task", ["embed", "tensors", "classify"])
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_backends_agree_on_the_same_weights(runtime, task, sources, cache):
    theirs = _answer_and_close(settings(Case(runtime, "bert", task), sources, cache))
    torchs = _answer_and_close(settings(Case("torch", "bert", task), sources, cache))
    assert set(theirs.outputs) == set(torchs.outputs)
    for name, ragged in torchs.outputs.items():
        np.testing.assert_allclose(theirs.outputs[name].data, ragged.data, atol=1e-4)
