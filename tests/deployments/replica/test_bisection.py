"""One bad row fails alone, cheaply, and the rest is answered right."""

from __future__ import annotations

import numpy as np
import pytest
from fake_runtimes import Moody, Quotient
from hypothesis import given
from hypothesis import strategies as st

from deployments.contract.channel.frames import rows_of
from deployments.replica.bisection import run_bisected, take
from runtimes.errors import BadRows, RunError, Unhealthy
from runtimes.types import Batch, Ragged


def batch_of(values: list[int]) -> Batch:
    shapes = ((1,),) * len(values)
    ids = Ragged("INT64", np.array(values, dtype=np.int64), shapes)
    return Batch(len(values), np.ones(len(values), dtype=np.int64), {"x": ids})


@pytest.mark.slow
@given(st.lists(st.sampled_from([BadRows, RunError, KeyError, None]), min_size=1, max_size=40))
def test_any_set_of_bad_rows_fails_alone_and_the_rest_is_answered_right(
    faults: list[type[Exception] | None],
) -> None:
    def mood(value: int) -> Exception | None:
        fault = faults[value]
        return None if fault is None else fault(f"row {value}")

    result = run_bisected(Moody(mood), batch_of(list(range(len(faults)))))
    bad = {e.row: e.callers_fault for e in result.errors}
    assert bad == {i: f is BadRows for i, f in enumerate(faults) if f is not None}
    good = [i for i, fault in enumerate(faults) if fault is None]
    answered = rows_of(result.outputs["y"]) if good else []
    assert [int(row[0]) for row in answered] == good
    assert result.padded_tokens == len(good)


@pytest.mark.parametrize("size", [1, 2, 31, 32])
def test_one_bad_row_costs_logarithmically_many_runs(size: int) -> None:
    runtime = Moody(lambda value: BadRows("bad") if value == 0 else None)
    run_bisected(runtime, batch_of(list(range(size))))
    assert len(runtime.batches) <= 1 + 2 * np.ceil(np.log2(size))


def test_stage_times_of_the_parts_add_up() -> None:
    result = run_bisected(Moody(lambda v: BadRows("x") if v == 0 else None), batch_of([0, 1, 2, 3]))
    assert result.times.run_s == pytest.approx(0.002)  # rows 1, and 2 with 3


def test_rows_of_a_batch_are_taken_with_all_their_inputs() -> None:
    ragged = Ragged("FP32", np.arange(6, dtype=np.float32), ((1,), (2,), (3,)))
    words = Ragged("BYTES", np.array([b"a", b"b", b"c"], dtype=object), ((1,), (1,), (1,)))
    batch = Batch(3, np.array([1, 2, 3]), {"a": ragged, "w": words}, ("out",))
    part = take(batch, 1, 3)
    assert (part.rows, part.lengths.tolist(), part.outputs) == (2, [2, 3], ("out",))
    assert part.inputs["a"].data.tolist() == [1, 2, 3, 4, 5]
    assert part.inputs["a"].shapes == ((2,), (3,))
    assert part.inputs["w"].data.tolist() == [b"b", b"c"]


def test_an_unhealthy_device_is_not_bisected() -> None:
    runtime = Moody(lambda value: Unhealthy("broken"))
    with pytest.raises(Unhealthy):
        run_bisected(runtime, batch_of([1, 2, 3, 4]))
    assert len(runtime.batches) == 1


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_rows_without_a_finite_answer_fail_alone_and_nothing_runs_again(values: list[int]) -> None:
    runtime = Quotient()
    result = run_bisected(runtime, batch_of(values))
    assert [e.row for e in result.errors] == [i for i, value in enumerate(values) if not value]
    assert all(e.not_finite and not e.callers_fault for e in result.errors)
    answers = [float(row[0]) for row in rows_of(result.outputs["y"])]
    assert answers == pytest.approx([1 / value for value in values if value])
    assert len(runtime.batches) == 1


def test_where_the_settings_allow_it_infinity_is_an_answer() -> None:
    result = run_bisected(Quotient(), batch_of([0, 1]), allow_non_finite=True)
    assert result.errors == ()
    assert [float(row[0]) for row in rows_of(result.outputs["y"])] == [np.inf, 1.0]
