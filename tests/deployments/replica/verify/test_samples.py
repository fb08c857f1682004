"""Samples of every length, the longest among them, and the same ones for the same seed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from deployments.replica.verify.agreement import Interval
from deployments.replica.verify.samples import (
    Reading,
    Sample,
    SampleFile,
    batch_of,
    batches,
    completed,
    drawn,
    interval_of,
    intervals,
)
from deployments.settings.reference import CannotVerify
from runtimes.types import Limits, RowShapes, TensorSpec

IDS = TensorSpec("input_ids", "INT64", (-1, -1))
MASK = TensorSpec("attention_mask", "INT64", (-1, -1))
TEXT = Limits(
    (IDS, MASK),
    (),
    length_input="input_ids",
    max_length=64,
    optional_inputs=("attention_mask",),
    id_bounds={"input_ids": 50},
)
IMAGE = Limits((TensorSpec("pixels", "FP32", (-1, 3, 4, 4)),), ())


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_buckets_cover_all_lengths_up_to_the_longest():
    assert intervals(TEXT, (8, 32)) == (Interval(1, 8), Interval(9, 32), Interval(33, 64))
    assert intervals(TEXT, (16, 128)) == (Interval(1, 16), Interval(17, 64))


def test_rows_without_length_are_one_bucket():
    among = intervals(IMAGE, (16, 32))
    assert among == (Interval(0, 0),)
    assert interval_of(1, among) == among[0]


@pytest.mark.parametrize(("length", "top"), [(1, 8), (8, 8), (9, 64), (64, 64), (65, 64)])
def test_a_length_falls_into_the_bucket_whose_edge_it_does_not_exceed(length, top):
    assert interval_of(length, intervals(TEXT, (8, 64))).longest == top


def test_every_bucket_has_its_shortest_and_its_longest_row_and_an_equal_share():
    among = intervals(TEXT, (8, 32))
    samples = drawn(TEXT, among, 200, rng())
    assert len(samples) == 200
    lengths = [sample.length for sample in samples]
    for interval in among:
        mine = [length for length in lengths if interval_of(length, among) == interval]
        assert {interval.shortest, interval.longest} <= set(mine)
        assert len(mine) >= 66


def test_ids_are_in_the_table_and_nearly_all_of_it():
    samples = drawn(TEXT, intervals(TEXT, (8, 32)), 200, rng())
    ids = np.concatenate([sample.inputs["input_ids"] for sample in samples])
    assert ids.min() >= 0
    assert ids.max() < 50
    assert len(np.unique(ids)) == 50
    assert set(samples[0].inputs) == {"input_ids"}


def test_the_seed_decides_everything():
    among = intervals(TEXT, (8, 64))
    one, same, other = (drawn(TEXT, among, 200, rng(seed)) for seed in (1, 1, 2))
    assert all(
        (a.inputs["input_ids"] == b.inputs["input_ids"]).all()
        for a, b in zip(one, same, strict=True)
    )
    assert [a.length for a in one] != [a.length for a in other]


def test_values_of_every_datatype_can_be_drawn():
    kinds = ("BOOL", "UINT8", "INT8", "INT32", "FP16", "BF16", "FP32", "FP64", "BYTES")
    limits = Limits(tuple(TensorSpec(kind, kind, (-1, 2, -1)) for kind in kinds), ())
    (sample, *_) = drawn(limits, intervals(limits, (1,)), 200, rng())
    assert {array.shape for array in sample.inputs.values()} == {(2, 1)}
    assert batch_of(limits, [sample, sample]).rows == 2


def test_batches_are_of_one_bucket_and_no_larger_than_the_model_s():
    among = intervals(TEXT, (8, 64))
    samples = drawn(TEXT, among, 200, rng())
    made = list(batches(samples, among, 16, 256))
    assert sorted(place for _, places in made for place in places) == list(range(200))
    for interval, places in made:
        assert {interval_of(samples[place].length, among) for place in places} == {interval}
        assert len(places) <= (16 if interval.longest == 8 else 4)


def test_a_batch_holds_its_samples_one_after_another():
    rows = [Sample({"input_ids": np.arange(n)}, n) for n in (2, 3)]
    batch = batch_of(TEXT, rows)
    assert batch.inputs["input_ids"].data.tolist() == [0, 1, 0, 1, 2]
    assert batch.inputs["input_ids"].shapes == ((2,), (3,))
    assert batch.lengths.tolist() == [2, 3]


def test_buckets_that_a_user_s_samples_leave_empty_are_filled():
    among = intervals(TEXT, (8, 32))
    given = [Sample({"input_ids": np.ones(5, np.int64)}, 5, drawn=False)] * 200
    samples = completed(given, TEXT, among, rng())
    assert samples[:200] == given
    assert {interval_of(s.length, among) for s in samples} == set(among)
    assert {s.length for s in samples} >= {9, 32, 33, 64}


def test_samples_of_all_buckets_are_left_as_they_are():
    among = intervals(TEXT, (64,))
    given = [Sample({"input_ids": np.ones(5, np.int64)}, 5, drawn=False)]
    assert completed(given, TEXT, among, rng()) == given


def test_rows_with_shapes_of_their_own_have_no_others():
    shapes = RowShapes("image", ((1, (1, 2, 2)), (4, (1, 3, 3))))
    inputs = (TensorSpec("image", "FP32", (-1, 1, -1, -1)),)
    limits = Limits(inputs=inputs, outputs=(), row_shapes=shapes)
    among = intervals(limits, (1, 4))
    assert among == (Interval(1, 1), Interval(4, 4))
    samples = drawn(limits, among, 10, np.random.default_rng(0))
    assert {(each.length, each.inputs["image"].shape) for each in samples} == set(shapes.shapes)


TEXT_INPUT = Limits(
    (TensorSpec("input_ids", "INT64", (-1, -1)), TensorSpec("attention_mask", "INT64", (-1, -1))),
    (),
    length_input="input_ids",
    max_length=8,
    optional_inputs=("attention_mask",),
)
PIXEL_INPUT = Limits((TensorSpec("pixels", "FP32", (-1, 2, 2)),), ())


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
    (sample,) = SampleFile(TEXT_INPUT, Reading(tokenizer)).read(lines(tmp_path, {"text": "b a c"}))
    assert sample.inputs["input_ids"].tolist() == [2, 1, 0]
    assert (sample.length, sample.drawn) == (3, False)


def test_ids_and_inputs_are_taken_as_they_are(tmp_path):
    file = lines(tmp_path, {"ids": [5, 6]}, "", {"inputs": {"input_ids": [7]}})
    one, two = SampleFile(TEXT_INPUT, Reading()).read(file)
    assert one.inputs["input_ids"].tolist() == [5, 6]
    assert two.inputs["input_ids"].dtype == np.int64


def test_rows_without_length_have_length_one(tmp_path):
    file = lines(tmp_path, {"inputs": {"pixels": [[1, 2], [3, 4]]}})
    (sample,) = SampleFile(PIXEL_INPUT, Reading()).read(file)
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
        SampleFile(TEXT_INPUT, Reading()).read(file)
    assert f"{file}:2: " in str(refused.value)
    assert said in str(refused.value)


def test_a_text_that_is_too_long_is_refused_not_cut(tmp_path, tokenizer):
    with pytest.raises(CannotVerify, match="the text has 9 tokens; this model takes at most 8"):
        SampleFile(TEXT_INPUT, Reading(tokenizer)).read(lines(tmp_path, {"text": "a " * 9}))


def test_dense_arrays_are_a_row_each(tmp_path):
    file = tmp_path / "samples.npz"
    np.savez(file, pixels=np.arange(12, dtype=np.float32).reshape(3, 2, 2))
    samples = SampleFile(PIXEL_INPUT, Reading()).read(file)
    assert [sample.inputs["pixels"].tolist() for sample in samples[:1]] == [[[0, 1], [2, 3]]]
    assert len(samples) == 3


def test_recorded_arrays_are_ragged(tmp_path):
    shapes = np.array([[2], [1]])
    np.savez(tmp_path / "samples.npz", **{"input_ids": [1, 2, 3], "input_ids.shapes": shapes})
    samples = SampleFile(TEXT_INPUT, Reading()).read(tmp_path)
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
        SampleFile(TEXT_INPUT, Reading()).read(tmp_path / "s.npz")
    assert said in str(refused.value)


def test_a_pickle_is_not_opened(tmp_path):
    np.savez(tmp_path / "s.npz", input_ids=np.array([{}], object))
    with pytest.raises(CannotVerify, match="cannot be read"):
        SampleFile(TEXT_INPUT, Reading()).read(tmp_path / "s.npz")


@pytest.mark.parametrize("name", ["none.npz", "model.onnx", "."])
def test_what_is_no_file_of_samples_says_what_would_be(tmp_path, name):
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(CannotVerify, match=r"must be \.jsonl, \.npz or a recorded folder"):
        SampleFile(TEXT_INPUT, Reading()).read(tmp_path / name)
