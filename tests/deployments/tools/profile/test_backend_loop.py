"""Are the sorted batches full, within bounds, and counted for what they are?"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.tools.profile.backend_loop import batch_of, loop, run_sorted, sorted_groups
from runtimes.types import Batch, Limits, Result, RuntimeSettings, StageTimes, TensorSpec

LIMITS = Limits(
    inputs=(TensorSpec("ids", "INT64", (-1, -1)), TensorSpec("mask", "INT64", (-1, -1))),
    outputs=(),
    length_input="ids",
    optional_inputs=("mask",),
)


class Putting:
    """A device that takes the next batch while it computes."""

    def __init__(self) -> None:
        self.put: list[Batch] = []

    def load(self) -> None: ...
    def warm(self) -> None: ...
    def health(self) -> None: ...
    def close(self) -> None: ...

    def limits(self) -> Limits:
        return replace(LIMITS, device="cuda:0")

    def prefetch(self, batch: Batch) -> None:
        self.put.append(batch)

    def run(self, batch: Batch) -> Result:
        return Result({}, StageTimes(), 1)


@given(
    lengths=st.lists(st.integers(1, 512), max_size=60),
    max_size=st.integers(1, 8),
    max_tokens=st.integers(1, 2048),
)
def test_every_row_is_in_one_batch_within_bounds(lengths, max_size, max_tokens):
    groups = list(sorted_groups(lengths, max_size, max_tokens))
    assert [length for group in groups for length in group] == sorted(lengths, reverse=True)
    for group in groups:
        assert len(group) <= max_size
        assert len(group) * group[0] <= max_tokens or len(group) == 1


@pytest.mark.parametrize(("rows", "batches"), [(0, 0), (1, 1), (4, 1), (5, 2)])
def test_batches_are_full_before_the_next_begins(rows, batches):
    assert len(list(sorted_groups([8] * rows, 4, 10_000))) == batches


def test_batch_gives_ids_to_the_length_input_and_leaves_optional_ones_out():
    batch = batch_of(LIMITS, (3, 2), seed=0)
    assert list(batch.inputs) == ["ids"]
    assert batch.inputs["ids"].shapes == ((3,), (2,))
    assert batch.inputs["ids"].data.size == 5


def test_loop_counts_rows_tokens_and_padding():
    settings = RuntimeSettings(
        "device", "synthetic", None, Path(), max_size=2, max_tokens=100, options={"base_ms": 0}
    )
    ((name, result),) = loop([settings], [4, 4, 2, 1], seconds=0.0)
    record = result.record()
    assert name == "device"
    assert (record["passes"], record["batches"], record["rows"]) == (1, 2, 4)
    assert record["padding"] == pytest.approx(1 - 11 / 12)


def test_loop_times_each_batch_and_rows_alone():
    settings = RuntimeSettings(
        "device", "synthetic", None, Path(), max_size=2, max_tokens=100, options={"base_ms": 2}
    )
    ((_, result),) = loop([settings], [4, 4, 2, 1], seconds=0.0)
    assert (len(result.batch_s), len(result.row_s)) == (2, 4)
    record = result.record()
    assert 2 <= record["batch_p50_ms"] <= record["batch_p99_ms"]
    assert 2 <= record["row_p50_ms"] <= record["row_p99_ms"]


def test_next_batch_is_put_while_one_runs_where_a_device_can():
    first, second = (batch_of(LIMITS, (length,), seed=0) for length in (3, 2))
    device = Putting()
    with ThreadPoolExecutor(1) as putting:
        run_sorted(device, [first, second], 0.0, putting)
    assert device.put == [second, first]


def test_models_take_turns():
    first, second = (
        RuntimeSettings(name, "synthetic", None, Path(), options={"base_ms": 0})
        for name in ("first", "second")
    )
    names = [name for name, _ in loop([first, second], [1, 2], seconds=0.0, rounds=2)]
    assert names == ["first", "second", "first", "second"]
