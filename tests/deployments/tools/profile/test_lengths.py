"""Are lengths read from what users have, and is what cannot be one said?"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from deployments.tools.profile.lengths import (
    RowLengths,
    WrongArguments,
    as_taken,
    lengths_for,
    share_longer,
)
from runtimes.types import Limits, RowShapes, TensorSpec


def read(path: Path | None, longest: int = 512) -> RowLengths:
    return lengths_for(path, longest, Random(0))


def test_one_length_a_line(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("5\n900\n\n17\n")
    found = read(path)
    assert (found.rows, found.all, found.given) == ((5, 17), (5, 900, 17), True)
    assert (found.mean, found.median) == (11.0, 17)
    assert share_longer(found.all, 512) == pytest.approx(1 / 3)


def test_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("length\n12\n600\n")
    assert read(path).all == (12, 600)


def test_a_trace_has_times_and_answers(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n1,10,5\n2,20,7\n")
    assert read(path).all == (10, 20)


def test_a_scenario_by_its_name() -> None:
    found = read(Path("ragged-mix"))
    assert found.given
    assert min(found.rows) >= 8


def test_without_a_file_the_mix_reaches_the_longest_row() -> None:
    found = read(None, 64)
    assert not found.given
    assert 50 < max(found.rows) <= 64
    assert min(found.rows) >= 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no lengths"),
        ("5\nx\n", r":2: is 'x'; must be a whole number of at least 1"),
        ("0\n", r":1: is '0'"),
        ("-3", "is '-3'"),
        ("600\n700\n", r"all 2 rows are longer than lengths.max \(512\)"),
    ],
)
def test_what_is_no_length_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(text)
    with pytest.raises(WrongArguments, match=said):
        read(path)


def test_a_file_that_is_not_there_is_said() -> None:
    with pytest.raises(WrongArguments, match="cannot be read"):
        read(Path("gone.txt"))


def test_lengths_are_as_the_loaded_model_has_them() -> None:
    ids = (TensorSpec("ids", "INT64", (-1, -1)),)
    assert as_taken((5, 9), Limits(ids, (), length_input="ids")) == (5, 9)
    assert as_taken((5, 9), Limits(ids, ())) == (1, 1)
    shapes = RowShapes("pixels", ((16, (3, 64, 64)), (64, (3, 128, 128))))
    assert as_taken((5, 16, 17, 99), Limits(ids, (), row_shapes=shapes)) == (16, 16, 64, 64)
