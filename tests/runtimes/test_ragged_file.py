"""Recorded rows come back in their own shapes and types."""

from __future__ import annotations

import numpy as np
import pytest

from runtimes import ragged_file
from runtimes.errors import LoadError


def test_rows_of_unlike_shapes_come_back_as_they_were(tmp_path):
    rows = [np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((1, 3), np.float32)]
    ragged_file.write(tmp_path / "s.npz", {"x": rows})
    found = ragged_file.read(tmp_path / "s.npz")["x"]
    assert [row.tolist() for row in found] == [row.tolist() for row in rows]
    assert found[0].dtype == np.float32


def test_texts_are_kept_as_bytes(tmp_path):
    ragged_file.write(tmp_path / "s.npz", {"t": [np.array([b"ab", b"c"], object)]})
    assert ragged_file.read(tmp_path / "s.npz")["t"][0].tolist() == [b"ab", b"c"]


def test_no_rows_are_no_rows(tmp_path):
    np.savez(tmp_path / "s.npz")
    assert ragged_file.read(tmp_path / "s.npz") == {}


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": np.ones(3), "x.shapes": np.array([[2]])}, "x.shapes does not fit x"),
        ({"x": np.ones(2), "x.shapes": np.array([[-1], [-2]])}, "does not fit"),
        ({"x": np.ones((2, 1)), "y": np.ones((3, 1))}, "unlike numbers of rows"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, arrays, said):
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(LoadError) as refused:
        ragged_file.read(tmp_path / "s.npz")
    assert said in str(refused.value)


def test_what_is_no_such_file_is_said(tmp_path):
    (tmp_path / "s.npz").write_bytes(b"none")
    with pytest.raises(LoadError, match="cannot be read"):
        ragged_file.read(tmp_path / "s.npz")


def test_texts_keep_their_ends_and_one_long_one_costs_no_other_room(tmp_path):
    texts = [b"", b"a\0", b"x" * 1_000_000, *[b"b"] * 500]
    ragged_file.write(tmp_path / "s.npz", {"file": [np.array([text], object) for text in texts]})
    assert [row.tolist() for row in ragged_file.read(tmp_path / "s.npz")["file"]] == [
        [text] for text in texts
    ]
    assert (tmp_path / "s.npz").stat().st_size < 1_100_000
