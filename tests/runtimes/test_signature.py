"""What a graph's inputs, outputs and options make of its limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimes.errors import LoadError
from runtimes.graph.dense import GraphFacts, declare, probe_lengths, with_length_axes
from runtimes.graph.options import GraphOptions
from runtimes.options import parse
from runtimes.types import Limits, RuntimeSettings, TensorSpec

IDS = TensorSpec("input_ids", "INT64", (-1, -1))
MASK = TensorSpec("attention_mask", "INT64", (-1, -1))
TYPES = TensorSpec("token_type_ids", "INT64", (-1, -1))
HIDDEN = TensorSpec("hidden", "FP32", (-1, -1, 8))


def settings(**fields) -> RuntimeSettings:
    return RuntimeSettings("m", "openvino", None, Path("unused"), **fields)


def limits_of(*inputs: TensorSpec, outputs=(HIDDEN,), **fields) -> Limits:
    return declare(GraphFacts(inputs, tuple(outputs)), settings(**fields), "p").limits


def test_hugging_face_names_are_found_by_themselves() -> None:
    limits = limits_of(IDS, MASK, TYPES)
    assert (limits.length_input, limits.mask_input) == ("input_ids", "attention_mask")
    assert limits.optional_inputs == ("attention_mask", "token_type_ids")


def test_other_names_have_no_length_unless_settings_say_so() -> None:
    other = TensorSpec("ids", "INT64", (-1, -1))
    assert limits_of(other).length_input is None
    assert limits_of(other, length_input="ids").length_input == "ids"


def test_mask_without_a_length_is_an_ordinary_input() -> None:
    limits = limits_of(TensorSpec("x", "FP32", (-1, 4)), MASK)
    assert (limits.mask_input, limits.optional_inputs) == (None, ())


def test_fixed_length_axis_is_no_length() -> None:
    fixed = TensorSpec("input_ids", "INT64", (-1, 128))
    assert limits_of(fixed).length_input is None
    with pytest.raises(LoadError, match="not dynamic"):
        limits_of(fixed, length_input="input_ids")


@pytest.mark.parametrize(
    "fields", [{"length_input": "nope"}, {"length_input": "input_ids", "mask_input": "nope"}]
)
def test_settings_that_name_no_input_are_refused(fields) -> None:
    with pytest.raises(LoadError, match="nope"):
        limits_of(IDS, MASK, **fields)


def test_length_may_be_on_another_axis() -> None:
    sound = TensorSpec("sound", "FP32", (-1, 80, -1))
    limits = limits_of(sound, length_input="sound", length_axis=2, max_length=3000)
    assert (limits.length_input, limits.length_axis, limits.max_length) == ("sound", 2, 3000)
    with pytest.raises(LoadError, match=r"lengths\.axis 1"):
        limits_of(sound, length_input="sound")


def test_rows_without_a_length_have_no_longest() -> None:
    assert limits_of(TensorSpec("x", "FP32", (-1, 4)), max_length=512).max_length is None


def test_stored_batch_size_becomes_the_most_rows() -> None:
    image = TensorSpec("pixels", "FP32", (4, 3, 2, 2))
    limits = limits_of(image, outputs=(TensorSpec("y", "FP32", (4, 2)),))
    assert limits.max_rows == 4
    assert limits.inputs[0].shape == (-1, 3, 2, 2)


def test_batch_sizes_that_disagree_are_refused() -> None:
    with pytest.raises(LoadError, match="axis 0"):
        limits_of(TensorSpec("a", "FP32", (1, 2)), outputs=(TensorSpec("y", "FP32", (2, 2)),))


def test_single_number_is_no_batch() -> None:
    with pytest.raises(LoadError, match="single number"):
        limits_of(TensorSpec("a", "FP32", ()))


@pytest.mark.parametrize(
    ("max_length", "edge", "expected"),
    [(None, 16, (15, 16)), (None, 1, (1, 2)), (8, 16, (7, 8)), (1, 16, (1, 1)), (2, 2, (1, 2))],
)
def test_probes_are_neighbours_within_the_limit(max_length, edge, expected) -> None:
    assert probe_lengths(Limits((), (), max_length=max_length), edge) == expected


def test_axes_that_grew_with_the_length_follow_it() -> None:
    outputs = (
        HIDDEN,
        TensorSpec("pooled", "FP32", (-1, -1)),
        TensorSpec("attention", "FP32", (-1, 2, -1, -1)),
    )
    signature = declare(GraphFacts((IDS,), outputs), settings(), "p")
    short = [(1, 15, 8), (1, 16), (1, 2, 15, 15)]
    long = [(1, 16, 8), (1, 16), (1, 2, 16, 16)]
    axes = with_length_axes(signature, (15, 16), (short, long)).length_axes
    assert axes == {"hidden": (1,), "pooled": (), "attention": (2, 3)}


@pytest.mark.parametrize("wrong", [{"pad_multiple": 0}, {"warm_s": -1.0}])
def test_impossible_options_are_named(wrong) -> None:
    with pytest.raises(LoadError, match=next(iter(wrong))):
        parse(GraphOptions, wrong)
