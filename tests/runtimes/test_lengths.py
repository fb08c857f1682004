"""Whose word holds on lengths: the settings', within what the model has."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimes.errors import LoadError
from runtimes.lengths import axis, longest, settled
from runtimes.types import Limits, RuntimeSettings

FOLDER = Limits((), (), max_length=64, length_input="ids", mask_input="mask")


def settings(**fields) -> RuntimeSettings:
    return RuntimeSettings("m", "torch", None, Path("unused"), **fields)


@pytest.mark.parametrize(
    ("asked", "taken", "expected"),
    [(None, None, None), (None, 64, 64), (1, None, 1), (1, 64, 1), (63, 64, 63), (64, 64, 64)],
)
def test_longest_row_is_the_settings_or_else_the_models(asked, taken, expected):
    assert longest(settings(max_length=asked), taken) == expected


@pytest.mark.parametrize("asked", [65, 512])
def test_more_than_the_model_takes_is_refused_with_what_would_do(asked):
    with pytest.raises(LoadError, match=rf"lengths\.max is {asked}, .* to 64 or less"):
        longest(settings(max_length=asked), 64)


def test_length_follows_the_batch_unless_settings_say():
    assert [axis(settings()), axis(settings(length_axis=2))] == [1, 2]


def test_naming_what_the_model_has_anyway_is_fine():
    named = settings(length_input="ids", length_axis=1, mask_input="mask", max_length=8)
    assert settled(FOLDER, named).max_length == 8
    assert settled(FOLDER, settings()) == FOLDER


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length_input": "mask"}, r"lengths\.input is mask .* where it is ids"),
        ({"length_axis": 2}, r"lengths\.axis is 2 .* where it is 1"),
        ({"mask_input": "ids"}, r"lengths\.mask is ids .* where it is mask"),
    ],
)
def test_length_that_stands_elsewhere_is_refused(fields, message):
    with pytest.raises(LoadError, match=message):
        settled(FOLDER, settings(**fields))


def test_mask_for_a_model_without_one_is_refused():
    with pytest.raises(LoadError, match="which has none: leave it out"):
        settled(Limits((), (), length_input="ids"), settings(mask_input="mask"))
