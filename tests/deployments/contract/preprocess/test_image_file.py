"""Which files are images that a model may be asked about, and what a refusal says of the others."""

from __future__ import annotations

import contextlib
import io
import struct
import time
import zlib

import numpy as np
import pytest
from PIL import Image

from deployments.contract.errors import BadRequest
from deployments.contract.preprocess.image_file import from_levels, opened

PIXELS = 10_000


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


@pytest.mark.parametrize(
    "data", [b"", b"\x00" * 100, b"GIF89a" + b"\x00" * 50, b"\x89PNG\r\n\x1a\n"]
)
def test_what_is_no_image_is_refused(data):
    assert "no JPEG or PNG" in refusal(data) or "cannot be decoded" in refusal(data)


def test_other_formats_are_refused():
    assert refusal(saved(colours(), "BMP")) == "image 3 is no JPEG or PNG image"


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
    for picture in (colours(), colours().convert("L"), colours().convert("1")):
        found = opened(saved(picture), "image", PIXELS, grey=grey)
        assert (np.asarray(found) == np.asarray(picture.convert(wanted))).all()


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
