"""The user's samples: what is read, and which line of a file is wrong and why."""

from __future__ import annotations

import json

import numpy as np
import pytest

from deployments.replica.verify.samples import Reading, SampleFile
from deployments.settings.reference import CannotVerify
from runtimes.types import Limits, TensorSpec

TEXT = Limits(
    (TensorSpec("input_ids", "INT64", (-1, -1)), TensorSpec("attention_mask", "INT64", (-1, -1))),
    (),
    length_input="input_ids",
    max_length=8,
    optional_inputs=("attention_mask",),
)
IMAGE = Limits((TensorSpec("pixels", "FP32", (-1, 2, 2)),), ())


@pytest.fixture
def tokenizer() -> bytes:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made.to_str().encode()


def lines(tmp_path, *rows):
    file = tmp_path / "samples.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return file


def test_texts_are_tokenised_as_the_service_would(tmp_path, tokenizer):
    (sample,) = SampleFile(TEXT, Reading(tokenizer)).read(lines(tmp_path, {"text": "b a c"}))
    assert sample.inputs["input_ids"].tolist() == [2, 1, 0]
    assert (sample.length, sample.drawn) == (3, False)


def test_ids_and_inputs_are_taken_as_they_are(tmp_path):
    file = lines(tmp_path, {"ids": [5, 6]}, "", {"inputs": {"input_ids": [7]}})
    one, two = SampleFile(TEXT, Reading()).read(file)
    assert one.inputs["input_ids"].tolist() == [5, 6]
    assert two.inputs["input_ids"].dtype == np.int64


def test_rows_without_length_have_length_one(tmp_path):
    file = lines(tmp_path, {"inputs": {"pixels": [[1, 2], [3, 4]]}})
    (sample,) = SampleFile(IMAGE, Reading()).read(file)
    assert sample.length == 1
    assert sample.inputs["pixels"].dtype == np.float32


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "is no JSON"),
        ("3", "must be an object with text, image, ids or inputs"),
        ({"ids": [1], "text": "a"}, "must be an object with text, image, ids or inputs"),
        ({"text": "a"}, "no tokenizer.json"),
        ({"ids": [1.5]}, "ids is no INT64"),
        ({"ids": ["x"]}, "ids is no INT64"),
        ({"ids": []}, "ids is no INT64"),
        ({"ids": [[1], [2]]}, "input_ids is [2, 1], it must be [-1]"),
        ({"ids": list(range(9))}, "has 9 tokens; the model takes 1 to 8"),
        ({"inputs": {"words": [1]}}, "no input 'words', it has input_ids, attention_mask"),
        ({"inputs": {"attention_mask": [1]}}, "lacks the input input_ids"),
        ({"inputs": [1]}, "inputs must be an object"),
    ],
)
def test_a_line_that_is_wrong_is_named_with_what_would_be_right(tmp_path, row, said):
    file = lines(tmp_path, {"ids": [1]}, row)
    with pytest.raises(CannotVerify) as refused:
        SampleFile(TEXT, Reading()).read(file)
    assert f"{file}:2: " in str(refused.value)
    assert said in str(refused.value)


def test_a_text_that_is_too_long_is_refused_not_cut(tmp_path, tokenizer):
    with pytest.raises(CannotVerify, match="the text has 9 tokens; this model takes at most 8"):
        SampleFile(TEXT, Reading(tokenizer)).read(lines(tmp_path, {"text": "a " * 9}))


def test_dense_arrays_are_a_row_each(tmp_path):
    file = tmp_path / "samples.npz"
    np.savez(file, pixels=np.arange(12, dtype=np.float32).reshape(3, 2, 2))
    samples = SampleFile(IMAGE, Reading()).read(file)
    assert [sample.inputs["pixels"].tolist() for sample in samples[:1]] == [[[0, 1], [2, 3]]]
    assert len(samples) == 3


def test_recorded_arrays_are_ragged(tmp_path):
    shapes = np.array([[2], [1]])
    np.savez(tmp_path / "samples.npz", **{"input_ids": [1, 2, 3], "input_ids.shapes": shapes})
    samples = SampleFile(TEXT, Reading()).read(tmp_path)
    assert [sample.inputs["input_ids"].tolist() for sample in samples] == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"input_ids": np.ones((2, 3))}, "input_ids is float64, it must be INT64"),
        ({"input_ids": np.ones(3, int), "input_ids.shapes": np.array([[2]])}, "does not fit"),
        ({"words": np.ones((2, 3), int)}, "no input 'words'"),
        ({}, "has no rows"),
    ],
)
def test_arrays_that_are_wrong_are_named(tmp_path, arrays, said):
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(CannotVerify) as refused:
        SampleFile(TEXT, Reading()).read(tmp_path / "s.npz")
    assert said in str(refused.value)


def test_a_pickle_is_not_opened(tmp_path):
    np.savez(tmp_path / "s.npz", input_ids=np.array([{}], object))
    with pytest.raises(CannotVerify, match="cannot be read"):
        SampleFile(TEXT, Reading()).read(tmp_path / "s.npz")


@pytest.mark.parametrize("name", ["none.npz", "model.onnx", "."])
def test_what_is_no_file_of_samples_says_what_would_be(tmp_path, name):
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(CannotVerify, match=r"must be \.jsonl, \.npz or a recorded folder"):
        SampleFile(TEXT, Reading()).read(tmp_path / name)
