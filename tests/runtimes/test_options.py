"""A backend's options: what is accepted, and what the message says of each mistake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from runtimes.errors import LoadError, MissingBackend
from runtimes.graph.options import check_layout
from runtimes.options import CPU, Device, check_device, chosen_device, parse
from runtimes.types import TensorSpec


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


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({}, Options()),
        (
            {"streams": 2, "timeout_s": 1.5, "pooling": "cls", "device": "CPU", "normalize": False},
            Options(2, 1.5, "cls", "CPU", False),
        ),
        ({"device": None, "sizes": [1, 2]}, Options(device=None, sizes=(1, 2))),
    ],
)
def test_every_known_type_is_taken(given, taken):
    assert parse(Options, given) == taken


def test_whole_number_serves_as_a_number():
    assert isinstance(parse(Options, {"timeout_s": 2}).timeout_s, float)


@pytest.mark.parametrize(
    ("options", "given", "said"),
    [
        (Options, {"stream": 2}, "unknown option 'stream', did you mean 'streams'"),
        (Options, {"qqq": 2}, "known are streams, timeout_s"),
        (Nothing, {"x": 1}, "there are none"),
        (Required, {}, "'path' is missing"),
        (Options, {"streams": 0}, "at least 1"),
    ],
)
def test_what_is_wrong_with_the_options_is_said(options, given, said):
    with pytest.raises(LoadError, match=said):
        parse(options, given)


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


@pytest.mark.parametrize("text", ["cpu", "cuda", "cuda:0", "cuda:12", "auto"])
def test_known_devices_are_taken(text):
    check_device(text)


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:-1", "CUDA", "cuda:1234", ""])
def test_other_words_are_told_what_is_right(text):
    with pytest.raises(ValueError, match="it takes cpu, cuda, cuda:N or auto"):
        check_device(text)


def test_auto_takes_the_first_gpu_or_the_processors():
    assert chosen_device("auto", 0, "torch") == CPU
    assert chosen_device("auto", 2, "torch") == Device("cuda", 0)


def test_number_picks_the_gpu():
    assert str(chosen_device("cuda:1", 2, "torch")) == "cuda:1"
    assert str(chosen_device("cuda", 2, "torch")) == "cuda:0"
    assert str(chosen_device("cpu", 2, "torch")) == "cpu"


def test_missing_gpu_is_said_with_the_way_out():
    with pytest.raises(MissingBackend, match=r"torch sees no CUDA GPU.* set device to cpu"):
        chosen_device("cuda", 0, "torch")


@pytest.mark.parametrize(("gpus", "seen"), [(1, "cuda:0 alone"), (2, "cuda:0 to cuda:1")])
def test_number_beyond_the_gpus_is_told_which_there_are(gpus, seen):
    with pytest.raises(MissingBackend, match=f"torch sees {seen}"):
        chosen_device("cuda:2", gpus, "torch")


def images(*shape: int) -> list[TensorSpec]:
    return [TensorSpec("pixels", "FP32", shape)]


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("NCHW", (-1, 3, 224, 224)),
        ("NCHW", (-1, 1, -1, -1)),
        ("NCHW", (-1, 64, 7, 7)),
        ("NHWC", (-1, 224, 224, 3)),
        ("NHWC", (-1, -1, -1, 4)),
        (None, (-1, 8)),
    ],
)
def test_right_declaration_is_taken(layout, shape):
    check_layout(layout, images(*shape))


@pytest.mark.parametrize(
    ("layout", "shape", "other"),
    [("NHWC", (-1, 3, 224, 224), "NCHW"), ("NCHW", (-1, 224, 224, 3), "NHWC")],
)
def test_wrong_declaration_names_option_and_input(layout, shape, other):
    with pytest.raises(LoadError, match=rf"'layout' is {layout}.*'pixels'.*set layout to {other}"):
        check_layout(layout, images(*shape))


def test_dynamic_channels_are_refused():
    with pytest.raises(LoadError, match="axis 1 holds the channels and must be fixed"):
        check_layout("NCHW", images(-1, -1, 224, 224))


def test_model_without_images_is_refused():
    with pytest.raises(LoadError, match=r"no input has four axes: 'pixels' \[-1, 8\]"):
        check_layout("NCHW", images(-1, 8))
