"""Rows to calibrate with: recorded ones, of every length, or a sentence that says what lacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runtimes import calibration, ragged_file
from runtimes.calibration import GraphInput
from runtimes.errors import LoadError
from runtimes.graph.options import GraphOptions
from runtimes.types import RuntimeSettings

INT = np.dtype(np.int64)
INPUTS = [
    GraphInput("input_ids", INT, 2),
    GraphInput("attention_mask", INT, 2),
    GraphInput("token_type_ids", INT, 2),
]


def settings(folder: Path, **fields) -> RuntimeSettings:
    chosen = {"max_length": 64, "edges": (8, 64), **fields}
    return RuntimeSettings("m", "onnxruntime", None, folder / "cache", precision="int8", **chosen)


def recorded(folder: Path, lengths, name: str = "input_ids") -> GraphOptions:
    rows = [np.full(length, at) for at, length in enumerate(lengths)]
    ragged_file.write(folder / "samples.npz", {name: rows})
    return GraphOptions(calibration=str(folder))


def test_rows_come_one_by_one_with_what_callers_leave_out(tmp_path):
    options = recorded(tmp_path, [3, 60] * 16)
    feeds = calibration.rows(settings(tmp_path), options, INPUTS)
    assert len(feeds) == 32
    assert {name: array.shape for name, array in feeds[0].items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "token_type_ids"), (1, 3)
    )
    assert feeds[0]["attention_mask"].all()
    assert not feeds[0]["token_type_ids"].any()


def test_long_rows_have_their_share_however_few_they_are(tmp_path):
    options = recorded(tmp_path, [3] * 1000 + [60] * 20)
    feeds = calibration.rows(settings(tmp_path), options, INPUTS)
    assert len(feeds) == calibration.MAX_ROWS
    assert sum(feed["input_ids"].shape[1] == 60 for feed in feeds) == 20


def test_short_rows_alone_are_refused_with_what_would_be_right(tmp_path):
    options = recorded(tmp_path, [1 + at % 8 for at in range(100)])
    with pytest.raises(LoadError) as refused:
        calibration.rows(settings(tmp_path), options, INPUTS)
    said = str(refused.value)
    assert "of 100 rows none are longer than 8 tokens (the longest has 8)" in said
    assert "the model takes 64" in said
    assert "set lengths.max to 8" in said
    assert "short_calibration" in said


@pytest.mark.parametrize(("long_ones", "taken"), [(3, False), (4, True)])
def test_a_few_long_rows_are_not_enough_until_they_are(tmp_path, long_ones, taken):
    options = recorded(tmp_path, [4] * 60 + [9] * long_ones)
    if taken:
        assert calibration.rows(settings(tmp_path), options, INPUTS)
        return
    with pytest.raises(LoadError, match="3 are longer than 8 tokens"):
        calibration.rows(settings(tmp_path), options, INPUTS)


def test_short_rows_are_taken_where_the_settings_insist(tmp_path):
    options = recorded(tmp_path, [4] * 60)
    insisting = GraphOptions(calibration=options.calibration, short_calibration=True)
    assert len(calibration.rows(settings(tmp_path), insisting, INPUTS)) == 60


def test_rows_without_length_need_no_long_ones(tmp_path):
    rows = [np.ones(4, np.float32)] * 40
    ragged_file.write(tmp_path / "samples.npz", {"x": rows})
    options = GraphOptions(calibration=str(tmp_path / "samples.npz"))
    inputs = [GraphInput("x", np.dtype(np.float32), 2)]
    assert len(calibration.rows(settings(tmp_path), options, inputs)) == 40


@pytest.mark.parametrize(
    ("lengths", "name", "said"),
    [
        ([60] * 31, "input_ids", "has 31 rows, a calibration takes 32 at least"),
        ([60] * 40, "words", "has rows of 'words'; the model takes input_ids"),
    ],
)
def test_what_cannot_be_a_calibration_says_why(tmp_path, lengths, name, said):
    options = recorded(tmp_path, lengths, name)
    with pytest.raises(LoadError) as refused:
        calibration.rows(settings(tmp_path), options, INPUTS)
    assert said in str(refused.value)


def test_a_folder_without_rows_says_what_writes_them(tmp_path):
    with pytest.raises(LoadError, match="`headrace record FILE MODEL` writes"):
        calibration.file_of(str(tmp_path))


def test_eight_bits_without_a_calibration_are_refused_and_one_for_nothing_too():
    said = calibration.missing("int8", GraphOptions())
    assert said is not None
    assert "needs the option calibration" in said
    assert "never taken from made-up rows" in said
    other = calibration.missing("bf16", GraphOptions(calibration="x"))
    assert other == "option 'calibration' is for precision int8 or fp8, not bf16"
    assert "precision fp8 needs the option" in str(calibration.missing("fp8", GraphOptions()))
    assert calibration.missing("int8", GraphOptions(calibration="x")) is None
    assert calibration.missing("fp32", GraphOptions()) is None


def test_the_rows_content_is_part_of_what_is_built(tmp_path):
    before = calibration.identity(recorded(tmp_path, [4] * 40), settings(tmp_path))
    after = calibration.identity(recorded(tmp_path, [5] * 40), settings(tmp_path))
    other = calibration.identity(recorded(tmp_path, [5] * 40), settings(tmp_path, edges=(16, 64)))
    assert len({before, after, other}) == 3
    assert calibration.identity(GraphOptions(), settings(tmp_path)) == ""
