"""Rows as the model was trained to have them, step by step by hand; turns of the pool."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from image_models import picture, png
from PIL import Image

from deployments.contract.description import ImageInput
from deployments.contract.errors import BadRequest
from deployments.contract.preprocess.images import prepared, row_bytes
from deployments.gateway.preprocess.fair_thread_pool import FairThreadPool
from deployments.gateway.preprocess.images import TURN_IMAGES, prepare_images

HOW = ImageInput(
    "image", "FP32", ((8, 12),), "bilinear", True, True, None,
    (0.1, 0.2, 0.3), (0.5, 0.25, 0.125), "RGB", "NCHW", 1_000_000,
)  # fmt: skip


def by_hand(image: Image.Image) -> np.ndarray:
    """[height, width, channels], RGB."""
    levels = np.asarray(image.resize((12, 8), Image.Resampling.BILINEAR), np.float32)
    return (levels / 255 - np.array([0.1, 0.2, 0.3])) / np.array([0.5, 0.25, 0.125])


def test_resized_normalised_and_laid_out():
    image = picture(30, 20)
    assert prepared(HOW, png(image), "image") == pytest.approx(
        by_hand(image).transpose(2, 0, 1), abs=1e-5
    )


def test_the_other_layout_is_the_same_numbers():
    image = picture(30, 20)
    found = prepared(replace(HOW, layout="NHWC"), png(image), "image")
    assert found == pytest.approx(by_hand(image), abs=1e-5)


def test_bgr_turns_the_channels_before_mean_and_std_are_applied():
    image = picture(30, 20)
    red, green, blue = image.split()
    turned = Image.merge("RGB", (blue, green, red))
    found = prepared(replace(HOW, colour="BGR", layout="NHWC"), png(image), "image")
    assert found == pytest.approx(by_hand(turned), abs=1e-5)


def test_levels_are_treated_as_the_file_they_could_be():
    image = picture(30, 20)
    assert (prepared(HOW, np.asarray(image), "x") == prepared(HOW, png(image), "x")).all()


@pytest.mark.parametrize(("given", "whole"), [((30, 20), (15, 10)), ((20, 30), (10, 15))])
def test_the_middle_is_cut_from_the_image_in_its_shape(given, whole):
    how = replace(HOW, sizes=((8, 8),), shorter_side=10, mean=(0.0,), std=(1.0,), layout="NHWC")
    image = picture(*given)
    levels = np.asarray(image.resize(whole[::-1], Image.Resampling.BILINEAR), np.float32) / 255
    top, left = round((whole[0] - 8) / 2), round((whole[1] - 8) / 2)
    assert prepared(how, png(image), "image") == pytest.approx(
        levels[top : top + 8, left : left + 8], abs=1e-6
    )


@pytest.mark.parametrize(
    ("given", "wanted"),
    [((4, 4), (8, 8)), ((8, 8), (8, 8)), ((9, 8), (16, 16)), ((99, 2), (16, 16))],
)
def test_the_smallest_size_that_holds_the_image_else_the_last(given, wanted):
    how = replace(HOW, sizes=((8, 8), (16, 16)))
    assert prepared(how, png(picture(*given)), "image").shape == (3, *wanted)


def test_whole_levels_stay_whole():
    how = replace(HOW, datatype="UINT8", mean=(0.0,), std=(1.0,), layout="NHWC")
    image = picture(8, 12)
    found = prepared(how, png(image), "image")
    assert found.dtype == np.uint8
    assert (found == np.asarray(image)).all()


def test_a_rows_memory_is_known_before_it_is_made():
    assert row_bytes(HOW) == prepared(HOW, png(picture(3, 3)), "image").nbytes


async def test_images_come_in_order_over_many_turns():
    pool = FairThreadPool(2, 8)
    images = [png(picture(6, 6, seed=at)) for at in range(TURN_IMAGES * 2 + 3)]
    found = await prepare_images(pool, "a", HOW, images)
    assert all(
        (row == prepared(HOW, image, "image")).all()
        for row, image in zip(found, images, strict=True)
    )
    assert pool.statistics().turns_total == 3
    pool.close()


async def test_a_large_image_is_a_turn_of_its_own():
    pool = FairThreadPool(1, 8)
    large = png(picture(200, 200))
    await prepare_images(pool, "a", HOW, [large, large, png(picture(6, 6))])
    assert pool.statistics().turns_total == 3
    pool.close()


async def test_the_image_at_fault_is_named_by_its_place_and_hurts_nobody_else():
    pool = FairThreadPool(2, 8)
    good = png(picture(6, 6))
    bad, other = await asyncio.gather(
        prepare_images(pool, "a", HOW, [good, good, b"rubbish"]),
        prepare_images(pool, "b", HOW, [good]),
        return_exceptions=True,
    )
    assert isinstance(bad, BadRequest)
    assert bad.message == "image 2 is no JPEG or PNG image"
    assert isinstance(other, list)
    pool.close()


def test_a_strip_that_would_grow_beyond_all_bounds_is_refused_before_it_does():
    how = replace(HOW, sizes=((8, 8),), shorter_side=64)
    strip = np.zeros((2, 40_000, 3), np.uint8)
    with pytest.raises(BadRequest, match=r"would be 1280000 x 64"):
        prepared(how, strip, "image 0")
