"""The option `layout`: a declaration that is checked against the inputs' shapes."""

from __future__ import annotations

import pytest

from runtimes.errors import LoadError
from runtimes.graph.layout import check
from runtimes.types import TensorSpec


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
    check(layout, images(*shape))


@pytest.mark.parametrize(
    ("layout", "shape", "other"),
    [("NHWC", (-1, 3, 224, 224), "NCHW"), ("NCHW", (-1, 224, 224, 3), "NHWC")],
)
def test_wrong_declaration_names_option_and_input(layout, shape, other):
    with pytest.raises(LoadError, match=rf"'layout' is {layout}.*'pixels'.*set layout to {other}"):
        check(layout, images(*shape))


def test_dynamic_channels_are_refused():
    with pytest.raises(LoadError, match="axis 1 holds the channels and must be fixed"):
        check("NCHW", images(-1, -1, 224, 224))


def test_model_without_images_is_refused():
    with pytest.raises(LoadError, match=r"no input has four axes: 'pixels' \[-1, 8\]"):
        check("NCHW", images(-1, 8))
