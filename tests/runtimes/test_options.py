"""A backend's options: what is accepted, and what the message says of each mistake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from runtimes.errors import LoadError
from runtimes.options import parse


@dataclass(frozen=True)
class Options:
    streams: int = 1
    timeout_s: float = 0.5
    pooling: Literal["mean", "cls"] = "mean"
    device: str | None = None
    normalize: bool = True
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.streams < 1:
            raise ValueError(f"option 'streams' is {self.streams}, it must be at least 1")


@dataclass(frozen=True)
class Required:
    path: str


@dataclass(frozen=True)
class Nothing:
    pass


def test_nothing_given_leaves_the_defaults():
    assert parse(Options, {}) == Options()


def test_every_known_type_is_taken():
    given = {"streams": 2, "timeout_s": 1.5, "pooling": "cls", "device": "CPU", "normalize": False}
    assert parse(Options, given) == Options(2, 1.5, "cls", "CPU", False)


def test_whole_number_serves_as_a_number():
    parsed = parse(Options, {"timeout_s": 2})
    assert parsed.timeout_s == 2.0
    assert isinstance(parsed.timeout_s, float)


def test_list_serves_as_a_tuple():
    assert parse(Options, {"sizes": [1, 2]}).sizes == (1, 2)


def test_nothing_is_accepted_where_it_may_be_left_out():
    assert parse(Options, {"device": None}).device is None


def test_unknown_option_is_named_with_the_close_one():
    with pytest.raises(LoadError, match="unknown option 'stream', did you mean 'streams'"):
        parse(Options, {"stream": 2})


def test_unlike_option_gets_the_list_of_known_ones():
    with pytest.raises(LoadError, match="known are streams, timeout_s"):
        parse(Options, {"qqq": 2})


def test_backend_without_options_says_so():
    with pytest.raises(LoadError, match="there are none"):
        parse(Nothing, {"x": 1})


def test_missing_option_is_named():
    with pytest.raises(LoadError, match="'path' is missing"):
        parse(Required, {})


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("streams", "2", "a whole number"),
        ("streams", True, "a whole number"),
        ("streams", 1.5, "a whole number"),
        ("timeout_s", "1", "a number"),
        ("timeout_s", 10**400, "a number"),
        ("normalize", 1, "true or false"),
        ("pooling", "max", "one of mean, cls"),
        ("device", 3, "a text or nothing"),
        ("sizes", [1, "2"], "a list, each a whole number"),
        ("sizes", 5, "a list, each a whole number"),
    ],
)
def test_wrong_type_is_told_what_is_right(name, value, right):
    with pytest.raises(LoadError, match=f"'{name}' is .* it takes {right}"):
        parse(Options, {name: value})


def test_all_mistakes_come_at_once():
    with pytest.raises(LoadError) as caught:
        parse(Options, {"stream": 2, "normalize": 1})
    assert "stream" in str(caught.value)
    assert "normalize" in str(caught.value)


def test_mistake_found_by_the_options_themselves_is_a_load_error():
    with pytest.raises(LoadError, match="at least 1"):
        parse(Options, {"streams": 0})
