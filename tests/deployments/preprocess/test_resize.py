"""Resized levels are those of torch and Pillow, to tight tolerances, both kernels, both ways."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from deployments.preprocess.images import Operation, resized

torch = pytest.importorskip("torch")

SHAPES = [
    ((37, 53), (16, 16)),
    ((60, 40), (112, 96)),
    ((8, 8), (8, 8)),
    ((1, 5), (3, 7)),
    ((300, 500), (64, 48)),
    ((7, 300), (300, 7)),
]
KINDS = ["bilinear", "bicubic"]
# Of 255 levels: float32 sums in another order.
CLOSE = 0.005


def levels(height: int, width: int, channels: int = 3) -> np.ndarray:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(height * width).integers(0, 256, shape, dtype=np.uint8)


def by_torch(pixels: np.ndarray, size: tuple[int, int], kind: str, antialias: bool) -> np.ndarray:
    tensor = torch.from_numpy(pixels.astype(np.float32)).permute(2, 0, 1)[None].contiguous()
    found = torch.nn.functional.interpolate(tensor, size, mode=kind, antialias=antialias)
    return found[0].permute(1, 2, 0).numpy()


@pytest.mark.parametrize(("given", "wanted"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("antialias", [True, False])
def test_float_levels_equal_torchs_interpolate(given, wanted, kind, antialias):
    pixels = levels(*given)
    found = resized(Image.fromarray(pixels), Operation(kind, antialias, False), *wanted)
    assert found.dtype == np.float32
    assert np.abs(found - by_torch(pixels, wanted, kind, antialias)).max() < CLOSE


@pytest.mark.parametrize(("given", "wanted"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_rounded_antialiased_levels_are_pillows_to_the_last_bit(given, wanted, kind):
    picture = Image.fromarray(levels(*given))
    kernel = getattr(Image.Resampling, kind.upper())
    found = resized(picture, Operation(kind, True, True), *wanted)
    assert (found == np.asarray(picture.resize(wanted[::-1], kernel))).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rounded_levels_without_antialiasing_are_torchs_rounded_and_bounded(kind):
    pixels = levels(60, 40)
    found = resized(Image.fromarray(pixels), Operation(kind, False, True), 112, 96)
    exact = by_torch(pixels, (112, 96), kind, False)
    unsure = np.abs(exact % 1 - 0.5) < CLOSE
    assert (found == np.clip(np.rint(exact), 0, 255))[~unsure].all()
    assert found.min() >= 0
    assert found.max() <= 255


@pytest.mark.parametrize("kind", KINDS)
def test_antialiasing_makes_a_difference_where_an_image_gets_smaller(kind):
    picture = Image.fromarray(levels(64, 64))
    smooth, sharp = (
        resized(picture, Operation(kind, antialias, False), 8, 8) for antialias in (True, False)
    )
    assert np.abs(smooth - sharp).max() > 20


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("rounded", [True, False])
def test_grey_keeps_an_axis_for_its_channel(antialias, rounded):
    picture = Image.fromarray(levels(9, 7, 1))
    assert resized(picture, Operation("bilinear", antialias, rounded), 4, 5).shape == (4, 5, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_taken_in_many_strips_is_resized_as_in_one(kind, monkeypatch):
    picture = Image.fromarray(levels(50, 30))
    whole = resized(picture, Operation(kind, False, False), 20, 20)
    monkeypatch.setattr("deployments.preprocess.images._STRIP_BYTES", 200)
    assert (resized(picture, Operation(kind, False, False), 20, 20) == whole).all()
