"""What every runtime must answer: the suites that Headrace's own run, for one of yours.

    class TestMine(RuntimeSuite): ...
    class TestMyLengths(LengthSuite): ...  # where rows have a length; else StackedSuite

Both need a pytest fixture `running` that gives the runtime, loaded and warm. It must take rows of
up to `LONGEST`, `MAX_SIZE` at once, token ids from 1 to 89, and answer what depends on the row's
values. Rows are compared with themselves alone (1e-5; more in lower precisions), so that batching,
padding and order are proved by values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from runtimes.errors import BadRows
from runtimes.independence import TOLERANCES, batch_of, one, row_of
from runtimes.types import DTYPES, Batch, Limits, Ragged, Result, Runtime

MAX_SIZE, LONGEST, TOLERANCE = 8, 64, TOLERANCES["fp32"]
LENGTHS = (3, 1, 17, LONGEST, 2)


def tolerance_of(runtime: Runtime) -> float:
    return TOLERANCES[runtime.limits().precision]


def assert_same_rows(together: Result, alone: list[Result], tolerance: float = TOLERANCE) -> None:
    for name, ragged in together.outputs.items():
        assert len(ragged.shapes) == len(alone)
        for row, single in enumerate(alone):
            mine, own = one(ragged, row), single.outputs[name]
            assert mine.shapes == own.shapes
            assert_close(mine.data, own.data, tolerance)


def assert_close(
    left: np.ndarray[Any, Any], right: np.ndarray[Any, Any], tolerance: float = TOLERANCE
) -> None:
    if left.dtype == object:
        assert left.tolist() == right.tolist()
    else:
        np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)


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


class RuntimeSuite:
    """Of every runtime."""

    def test_different_rows_have_different_answers(self, running: Runtime) -> None:
        """Without this, a backend that answers constants would pass the comparison with itself."""
        result = running.run(batch_of(running.limits(), (5,) * 4))
        for ragged in result.outputs.values():
            rows = {tuple(one(ragged, row).data.tolist()) for row in range(4)}
            assert len(rows) == 4

    @pytest.mark.parametrize("rows", [1, 2, MAX_SIZE])
    def test_batches_of_every_size_answer_every_row(self, running: Runtime, rows: int) -> None:
        result = running.run(batch_of(running.limits(), (4,) * rows))
        for ragged in result.outputs.values():
            assert len(ragged.shapes) == rows
            assert sum(map(math.prod, ragged.shapes)) == ragged.data.size

    def test_stage_times_fit_into_the_wall_time(self, running: Runtime) -> None:
        batch = batch_of(running.limits(), (8,) * MAX_SIZE)
        begin = perf_counter()
        times = running.run(batch).times
        wall_s = perf_counter() - begin
        stages = (times.pad_s, times.copy_in_s, times.run_s, times.copy_out_s, times.post_s)
        assert all(stage >= 0 for stage in stages)
        assert times.run_s > 0
        assert sum(stages) <= wall_s

    def test_outputs_are_as_declared(self, running: Runtime) -> None:
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
                assert all(
                    want in (-1, size) for size, want in zip(shape, spec.shape[1:], strict=True)
                )

    def test_only_the_outputs_asked_for_come_back(self, running: Runtime) -> None:
        limits = running.limits()
        for spec in limits.outputs:
            asked = replace(batch_of(limits, (2, 1)), outputs=(spec.name,))
            assert list(running.run(asked).outputs) == [spec.name]

    def test_answers_outlive_the_next_batch(self, running: Runtime) -> None:
        """A runtime that hands out its own buffers would let the next batch overwrite an answer."""
        limits = running.limits()
        kept = running.run(batch_of(limits, (4, 4), seed=1))
        before = {name: ragged.data.copy() for name, ragged in kept.outputs.items()}
        running.run(batch_of(limits, (4, 4), seed=2))
        for name, ragged in kept.outputs.items():
            assert ragged.data.tolist() == before[name].tolist()

    def test_read_only_input_answers_as_any_other(self, running: Runtime) -> None:
        """What came off a network is read-only; a runtime that copies it must keep the copy while
        it runs, or the next allocation writes over it."""
        for seed in range(8):
            batch = batch_of(running.limits(), (4, 4), seed=seed)
            free = running.run(batch)
            for ragged in batch.inputs.values():
                ragged.data.flags.writeable = False
            fixed = running.run(batch)
            for name, ragged in free.outputs.items():
                assert ragged.data.tolist() == fixed.outputs[name].data.tolist()

    @pytest.mark.parametrize(
        "spoil",
        [unknown_input, missing_input, wrong_datatype, wrong_rank, unknown_output],
        ids=lambda spoil: spoil.__name__,
    )
    def test_bad_rows_are_refused_and_the_next_batch_is_fine(
        self, running: Runtime, spoil: Callable[[Batch], Batch]
    ) -> None:
        batch = batch_of(running.limits(), (3, 2))
        good = running.run(batch)
        with pytest.raises(BadRows):
            running.run(spoil(batch))
        after = running.run(batch)
        for name, ragged in good.outputs.items():
            assert_close(ragged.data, after.outputs[name].data)


class LengthSuite:
    """Of runtimes whose rows have a length. A runtime without a vocabulary overrides
    `takes_every_id`."""

    def takes_every_id(self, limits: Limits) -> bool:
        return False

    def test_ragged_batch_answers_each_row_as_if_alone(self, running: Runtime) -> None:
        batch = batch_of(running.limits(), LENGTHS)
        alone = [running.run(row_of(batch, row)) for row in range(len(LENGTHS))]
        assert_same_rows(running.run(batch), alone, tolerance_of(running))

    @pytest.mark.parametrize("length", [1, 2, LONGEST])
    def test_rows_of_every_length_answer(self, running: Runtime, length: int) -> None:
        result = running.run(batch_of(running.limits(), (length, 1)))
        least = 2 * length if running.limits().pads else length + 1
        edge = next((edge for edge in running.limits().fixed_edges if edge >= length), length)
        assert least <= result.padded_tokens <= MAX_SIZE * max(2, edge)
        if not running.limits().fixed_edges and "compile" not in running.limits().platform:
            assert result.padded_tokens == least
        for ragged in result.outputs.values():
            assert np.isfinite(ragged.data).all()

    def test_outputs_that_follow_the_length_are_cut_to_it(self, running: Runtime) -> None:
        limits = running.limits()
        result = running.run(batch_of(limits, LENGTHS))
        for spec in limits.outputs:
            if spec.shape[1:2] == (-1,):
                assert [shape[0] for shape in result.outputs[spec.name].shapes] == list(LENGTHS)

    def test_mask_that_is_left_out_is_all_real_tokens(self, running: Runtime) -> None:
        limits = running.limits()
        if limits.mask_input is None:
            pytest.skip("the model has no mask")
        without = batch_of(limits, LENGTHS)
        ones = Ragged("INT64", np.ones(sum(LENGTHS), np.int64), tuple((n,) for n in LENGTHS))
        given = replace(without, inputs={**without.inputs, limits.mask_input: ones})
        with_mask, made = running.run(given), running.run(without)
        for name, ragged in made.outputs.items():
            assert_close(ragged.data, with_mask.outputs[name].data, tolerance_of(running))

    def test_same_batch_gives_the_same_answer_twice(self, running: Runtime) -> None:
        batch = batch_of(running.limits(), LENGTHS)
        first, second = running.run(batch), running.run(batch)
        for name, ragged in first.outputs.items():
            assert_close(ragged.data, second.outputs[name].data)

    @pytest.mark.parametrize("token", [-1, 100, 1 << 40])
    def test_token_outside_the_vocabulary_is_the_callers_fault(
        self, running: Runtime, token: int
    ) -> None:
        limits = running.limits()
        if self.takes_every_id(limits):
            pytest.skip("it takes every id")
        batch = batch_of(limits, (3, 2))
        name, ragged = _first(batch)
        spoiled = ragged.data.copy()
        spoiled[1] = token
        with pytest.raises(BadRows):
            running.run(_with(batch, name, replace(ragged, data=spoiled)))
        running.run(batch)

    def test_row_over_the_longest_is_the_callers_fault(self, running: Runtime) -> None:
        limits = running.limits()
        if limits.max_length is None:
            pytest.skip("the model takes any length")
        running.run(batch_of(limits, (limits.max_length,)))
        with pytest.raises(BadRows):
            running.run(batch_of(limits, (limits.max_length + 1,)))


class StackedSuite:
    """Of runtimes whose rows have one shape."""

    def test_stacked_rows_answer_each_as_if_alone(self, running: Runtime) -> None:
        batch = batch_of(running.limits(), (1,) * 3)
        alone = [running.run(row_of(batch, row)) for row in range(3)]
        assert_same_rows(running.run(batch), alone, tolerance_of(running))

    def test_rows_of_different_shapes_do_not_stack(self, running: Runtime) -> None:
        batch = batch_of(running.limits(), (1, 1))
        name, ragged = _first(batch)
        shape = ragged.shapes[0]
        uneven = (*shape[:-1], shape[-1] + 1) if shape else (1,)
        data = np.concatenate([ragged.data[: math.prod(shape)]] * 3)[: math.prod(shape) * 2]
        with pytest.raises(BadRows):
            running.run(_with(batch, name, Ragged(ragged.datatype, data, (shape, uneven))))
        running.run(batch)
