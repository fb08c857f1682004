"""Which files are images, what refusals say of the others, and rows as the model expects them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import struct
import time
import zlib
from dataclasses import replace

import numpy as np
import pytest
from image_models import picture, png
from PIL import Image

from deployments.contract.description import ImageInput
from deployments.contract.errors import BadRequest
from deployments.gateway.services import TURN_IMAGES, prepare_images
from deployments.gateway.tenancy.fair_thread_pool import FairThreadPool
from deployments.preprocess.images import from_levels, opened, prepared, row_bytes

PIXELS = 10_000
HOW = ImageInput(
    "image", "FP32", ((8, 12),), "bilinear", True, True, None,
    (0.1, 0.2, 0.3), (0.5, 0.25, 0.125), "RGB", "NCHW", 1_000_000,
)  # fmt: skip


def saved(picture: Image.Image, kind: str = "PNG", **options) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def colours(height: int = 6, width: int = 4) -> Image.Image:
    numbers = np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)
    return Image.fromarray(numbers)


def refusal(data: bytes, max_pixels: int = PIXELS) -> str:
    with pytest.raises(BadRequest) as refused:
        opened(data, "image 3", max_pixels, grey=False)
    assert refused.value.message.startswith("image 3 ")
    return refused.value.message


def header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_png_comes_as_it_was_saved():
    found = opened(saved(colours()), "image", PIXELS, grey=False)
    assert (np.asarray(found) == np.asarray(colours())).all()


def test_jpeg_comes_as_pillow_decodes_it():
    data = saved(colours(), "JPEG", quality=90)
    found = opened(data, "image", PIXELS, grey=False)
    assert (np.asarray(found) == np.asarray(Image.open(io.BytesIO(data)))).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_cut_off_file_is_the_callers_fault(kind):
    data = saved(Image.effect_noise((90, 90), 80), kind)
    for end in (len(data) // 2, len(data) - 60):
        assert "cannot be decoded" in refusal(data[:end])


@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b"GIF89a" + b"\x00" * 50, b"\x89PNG"])
def test_what_is_no_image_is_refused(data):
    assert refusal(data) == "image 3 is not a JPEG or PNG image"


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.7])
def test_a_part_of_a_file_is_called_so(kind, share):
    data = saved(colours(), kind)
    said = refusal(data[: max(int(len(data) * share), 8)])
    assert f"begins as a {kind} file" in said or "cannot be decoded" in said
    assert "not a" not in said


def test_other_formats_are_refused():
    assert refusal(saved(colours(), "BMP")) == "image 3 is not a JPEG or PNG image"


@pytest.mark.parametrize(("pixels", "taken"), [(25, True), (24, True), (23, False)])
def test_pixels_are_bounded(pixels, taken):
    if taken:
        assert opened(saved(colours()), "image", pixels, grey=False).size == (4, 6)
    else:
        assert "is 4 x 6 = 24 pixels; this model takes 23 at most" in refusal(
            saved(colours()), pixels
        )


@pytest.mark.parametrize("side", [9_000, 30_000, 2**31 - 1])
def test_a_bomb_is_refused_by_its_header_alone(side):
    began = time.perf_counter()
    assert "pixels" in refusal(header(side, side)) or "cannot" in refusal(header(side, side))
    assert time.perf_counter() - began < 0.5


def test_upright_as_its_exif_says():
    exif = Image.Exif()
    exif[274] = 6  # the top is on the right-hand side
    data = saved(colours(), "JPEG", exif=exif, quality=95)
    found = opened(data, "image", PIXELS, grey=False)
    lying = Image.open(io.BytesIO(data))
    assert (np.asarray(found) == np.rot90(np.asarray(lying), -1)).all()


def test_transparent_pixels_are_refused_and_opaque_ones_taken():
    clear = colours().convert("RGBA")
    assert (
        np.asarray(opened(saved(clear), "image", PIXELS, grey=False)) == np.asarray(colours())
    ).all()
    clear.putpixel((1, 1), (1, 2, 3, 200))
    assert "transparent pixels" in refusal(saved(clear))


def test_a_palettes_transparency_is_seen():
    indexed = colours().quantize(4)
    assert opened(saved(indexed), "image", PIXELS, grey=False).mode == "RGB"
    assert "transparent pixels" in refusal(saved(indexed, transparency=0))


@pytest.mark.parametrize("grey", [True, False])
def test_grey_and_colour_become_each_other_as_in_pillow(grey):
    wanted = "L" if grey else "RGB"
    for image in (colours(), colours().convert("L"), colours().convert("1")):
        found = opened(saved(image), "image", PIXELS, grey=grey)
        assert (np.asarray(found) == np.asarray(image.convert(wanted))).all()


def test_cmyk_is_refused():
    assert "colour mode CMYK" in refusal(saved(colours().convert("CMYK"), "JPEG"))


def test_sixteen_bits_are_refused():
    deep = Image.fromarray(np.full((4, 4), 40_000, np.uint16))
    assert "16 bits" in refusal(saved(deep))


def test_an_animation_is_refused():
    frames = [Image.new("RGB", (4, 4), shade) for shade in ("red", "blue")]
    data = saved(frames[0], "PNG", save_all=True, append_images=frames[1:])
    assert "animated" in refusal(data)


def test_a_jpeg_of_endless_scans_is_refused():
    data = saved(colours(), "JPEG")
    assert "scans" in refusal(data + b"\xff\xda" * 200)


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 2), (3, 4, 4, 3)])
def test_levels_need_height_width_and_channels(shape):
    with pytest.raises(BadRequest, match=r"\[height, width, 1 or 3\]"):
        from_levels(np.zeros(shape, np.uint8), "image", PIXELS, False)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_rubbish_raises_nothing_but_refusals(kind):
    chance = np.random.default_rng(1)
    whole = bytearray(saved(Image.effect_noise((40, 40), 50), kind))
    refused = 0
    for _ in range(150):
        broken = bytearray(whole)
        for at in chance.integers(0, len(broken), 6).tolist():
            broken[at] = int(chance.integers(256))
        with contextlib.suppress(BadRequest):
            opened(bytes(broken), "image", PIXELS, grey=False)
            continue
        refused += 1
    assert refused > 10


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
    assert bad.message == "image 2 is not a JPEG or PNG image"
    assert isinstance(other, list)
    pool.close()


def test_a_strip_that_would_grow_beyond_all_bounds_is_refused_before_it_does():
    how = replace(HOW, sizes=((8, 8),), shorter_side=64)
    strip = np.zeros((2, 40_000, 3), np.uint8)
    with pytest.raises(BadRequest, match=r"would be 1280000 x 64"):
        prepared(how, strip, "image 0")
